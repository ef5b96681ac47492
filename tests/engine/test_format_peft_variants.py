"""What PEFT itself writes for each of its features: its own updates, or one line that refuses it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from format_cases import HERE, numbers
from inspection_command import run, same_numbers
from tiny_models import DENSE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine

PROFILE = HERE / "profiles" / "qwen3-dense.json"
EMBEDDINGS = ["q_proj", "embed_tokens", "lm_head"]
LOADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rsLoRA and patterns": {
        "use_rslora": True,
        "rank_pattern": {r"^model\.layers\.0\..*q_proj": 2},
        "alpha_pattern": {"v_proj": 5},
    },
    "some layers": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "all but some": {"target_modules": "all-linear", "exclude_modules": ["k_proj"]},
    "an expression": {"target_modules": r".*\.(q|o)_proj", "exclude_modules": r".*layers\.0.*"},
    "parameters": {
        "target_modules": [],
        "target_parameters": ["self_attn.q_proj.weight", "mlp.down_proj.weight"],
        "rank_pattern": {"q_proj.weight": 2, "down_proj": 8},
    },
    "gaussian": {"init_lora_weights": "gaussian"},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "mica": {"init_lora_weights": "mica"},
    "velora": {"velora_config": {}},
    "monteclora": {"monteclora_config": {"num_samples": 2}},
    "embeddings": {"target_modules": EMBEDDINGS},
    "tied embeddings": {"target_modules": EMBEDDINGS, "ensure_weight_tying": True},
    "lm_head tied to embed_tokens": {"target_modules": EMBEDDINGS[:2], "ensure_weight_tying": True},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dora": ({"use_dora": True}, "DoRA is not supported"),
    "lora_bias": ({"lora_bias": True}, "lora_bias is not supported"),
    "bias": ({"bias": "lora_only"}, "bias: lora_only is not supported"),
    "alora": ({"alora_invocation_tokens": [1, 2]}, "aLoRA (alora_invocation_tokens)"),
    "pissa": ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa changes the base weights"),
    "olora": ({"init_lora_weights": "olora"}, "init_lora_weights=olora changes the base weights"),
    "kasa": ({"kasa_config": {}}, "KaSA (kasa_config) is not supported"),
    "bdlora": (
        {
            "target_modules": ["q_proj"],
            "use_bdlora": {"target_modules_bd_a": ["q_proj"], "nblocks": 2},
        },
        "block-diagonal LoRA (use_bdlora) is not supported",
    ),
    "modules_to_save": ({"modules_to_save": ["norm"]}, "modules_to_save [norm] is not supported"),
    "tokens": ({"trainable_token_indices": [3]}, "trainable_token_indices is not supported"),
    "replication": (
        {"layer_replication": [[0, 2], [0, 2]]},
        "layer_replication is not supported",
    ),
}


def trained(config: dict[str, Any]) -> Any:
    """Return PEFT's model with random factors, as after a training."""
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tied = bool(config.get("ensure_weight_tying"))
    base = Qwen3ForCausalLM(Qwen3Config(**{**DENSE, "tie_word_embeddings": tied})).bfloat16()
    base.name_or_path = base.config._name_or_path = "tiny/qwen3-dense"
    chosen = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **config}
    model = get_peft_model(
        base, LoraConfig(r=4, lora_alpha=8, **chosen), autocast_adapter_dtype=False
    )
    random = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if any(f"lora_{kind}." in name for kind in ("A", "B", "embedding_A", "embedding_B")):
            parameter.data = torch.randn(parameter.shape, generator=random).to(parameter.dtype)
    return model


def computed(model: Any) -> dict[str, Any]:
    """Return the numbers of each module's update, from PEFT's own layers."""
    from peft.tuners.lora import LoraLayer

    found = {}
    for name, module in model.base_model.model.named_modules():
        if not isinstance(module, LoraLayer):
            continue
        for adapter, scaling in module.scaling.items():
            embedded = adapter in module.lora_embedding_A
            a = module.lora_embedding_A[adapter] if embedded else module.lora_A[adapter].weight
            b = module.lora_embedding_B[adapter] if embedded else module.lora_B[adapter].weight
            factors = (factor.detach().double().numpy() for factor in (a, b))
            found[name] = numbers(*factors, float(scaling))
    return found


def saved(model: Any, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(folder, save_embedding_layers=False)
    return folder


@pytest.mark.parametrize("name", LOADS)
def test_what_peft_computes_is_what_the_command_tells(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = trained(LOADS[name])
    wanted = computed(model)
    adapter = saved(model, tmp_path)
    result = run(capsys, "inspect", adapter, "--profile", PROFILE, "-o", "json")
    assert (result.status, result.json["error"]) == (0, None)
    same_numbers(result.json["modules"], wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_engine_computes_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, message = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = saved(trained(config), tmp_path)
    result = run(capsys, "inspect", adapter, "--profile", PROFILE, "-o", "json")
    assert (result.status, result.json["reason"]) == (1, "InvalidAdapter")
    assert message in result.json["error"]
