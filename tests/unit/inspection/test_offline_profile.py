"""Engine profiles made from config.json alone."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from format_cases import profile
from inspection_command import COMMON, QWEN3, QWEN3_MOE, model, run
from lorafleet.profile import EngineProfile, LoraModule, ModuleKind
from lorafleet_operator.inspection.model_config import ARCHITECTURES, ModelConfig
from lorafleet_operator.inspection.offline_profile import FLAGS as OFFLINE_FLAGS

REPOSITORY = Path(__file__).resolve().parents[3]
FLAGS = "--max-lora-rank 8 --dtype bfloat16 --max-loras 2 --max-cpu-loras 3 -o json"
LLAMA = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, **COMMON}


def modules(config: dict[str, Any]) -> dict[str, LoraModule]:
    return {module.name: module for module in ModelConfig.parse(config).modules()}


def sizes(config: dict[str, Any], prefix: str) -> dict[str, tuple[int, int]]:
    """Return last part of the name -> (in, out) of the modules below `prefix`."""
    return {
        name.removeprefix(f"{prefix}."): (module.in_features, module.out_features)
        for name, module in modules(config).items()
        if name.startswith(f"{prefix}.")
    }


@pytest.mark.parametrize(("kind", "config"), [("dense", QWEN3), ("moe", QWEN3_MOE)])
def test_the_profile_of_a_model_is_that_of_its_engine(
    kind: str, config: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path, config)
    result = run(capsys, "profile", folder, "--base-model", f"tiny/qwen3-{kind}", *FLAGS.split())
    assert (result.status, result.err) == (0, "")
    assert EngineProfile.from_json(result.out) == profile(f"qwen3-{kind}")
    assert json.loads(result.out) == json.loads(profile(f"qwen3-{kind}").to_json())


def test_flags_and_defaults_are_those_of_vllm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path, QWEN3)
    plain = run(capsys, "profile", folder, "--base-model", "b", "-o", "json").json
    assert [plain[key] for key in ("dtype", "max_lora_rank", "max_loras", "max_cpu_loras")] == [
        "bfloat16",
        16,
        1,
        1,
    ]
    given = ["--alias", "b2", "--tensor-parallel", "2", "--expert-parallel"]
    given += ["--flag", "fully_sharded_loras"]
    other = run(capsys, "profile", folder, "--base-model", "b", *given, "-o", "json").json
    changed = {key: value for key, value in other.items() if value != plain[key]}
    assert changed == {
        "base_model_aliases": ["b2"],
        "tensor_parallel_size": 2,
        "expert_parallel": True,
        "flags": ["fully_sharded_loras"],
    }


def test_the_flags_are_those_that_the_plugin_tells_of() -> None:
    """Read from its text: to import it takes vLLM."""
    text = (REPOSITORY / "engine_sidecar" / "lorafleet_vllm" / "worker_profile.py").read_text()
    (known,) = re.findall(r"(?s)^_FLAGS = (\(.*?\))$", text, flags=re.MULTILINE)
    assert ast.literal_eval(known) == OFFLINE_FLAGS


def test_a_dense_model_without_head_dim_divides_its_hidden_size() -> None:
    assert sizes(LLAMA, "model.layers.1.self_attn") == {
        "q_proj": (256, 256),
        "k_proj": (256, 128),
        "v_proj": (256, 128),
        "o_proj": (256, 256),
    }
    assert sizes({**LLAMA, "head_dim": 96}, "model.layers.0.self_attn")["o_proj"] == (384, 256)
    alone = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert sizes(alone, "model.layers.0.self_attn")["k_proj"] == (256, 256)


def test_qwen3_without_head_dim_has_that_of_transformers() -> None:
    bare = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    assert sizes(bare, "model.layers.0.self_attn")["k_proj"] == (256, 256)


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_embeddings_take_lora_only_where_vllm_lets_them(kind: str) -> None:
    more = {"num_local_experts": 8, "shared_expert_intermediate_size": 0}
    config = {**QWEN3_MOE, **more, "model_type": kind}
    heads = {"model.embed_tokens", "lm_head"} & set(modules(config))
    allowed = {"llama", "mixtral", "phi3", "qwen3", "qwen3_moe"}
    assert heads == ({"model.embed_tokens", "lm_head"} if kind in allowed else set())


def test_phi3_keeps_its_fused_projections() -> None:
    found = sizes({**LLAMA, "model_type": "phi3"}, "model.layers.0")
    assert found["self_attn.qkv_proj"] == (256, 512)
    assert found["mlp.gate_up_proj"] == (256, 1024)
    assert len(found) == 4


def test_mixtral_names_its_experts_as_checkpoints_do() -> None:
    config = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4}
    found = modules(config)
    block = "model.layers.0.block_sparse_moe"
    assert found[f"{block}.gate"] == LoraModule(f"{block}.gate", 256, 4)
    w2 = f"{block}.experts.w2"
    assert found[w2] == LoraModule(w2, 512, 256, ModuleKind.EXPERTS, 4)
    assert not [name for name in found if ".mlp." in name]


def test_experts_are_counted_under_the_name_of_transformers_5_too() -> None:
    renamed = {**QWEN3_MOE, "num_local_experts": QWEN3_MOE["num_experts"]}
    both = modules(renamed)
    del renamed["num_experts"]
    assert modules(renamed) == both == modules(QWEN3_MOE)


def test_qwen2_moe_has_a_shared_expert_beside_the_others() -> None:
    config = {**QWEN3_MOE, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 48}
    found = sizes(config, "model.layers.1.mlp")
    assert found["shared_expert.down_proj"] == (48, 64)
    assert found["shared_expert_gate"] == (64, 1)
    assert found["experts.up_proj"] == (64, 32)


def test_dense_layers_of_a_moe_model_are_those_of_its_config() -> None:
    mixed = {**QWEN3_MOE, "mlp_only_layers": [1]}
    assert "experts.up_proj" in sizes(mixed, "model.layers.0.mlp")
    assert sizes(mixed, "model.layers.1.mlp") == {
        "gate_proj": (64, 64),
        "up_proj": (64, 64),
        "down_proj": (64, 64),
    }
    stepped = {**QWEN3_MOE, "decoder_sparse_step": 2}
    assert sizes(stepped, "model.layers.0.mlp") == {"down_proj": (64, 64)}  # as vLLM wraps it
    assert "experts.up_proj" in sizes(stepped, "model.layers.1.mlp")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({**QWEN3, "model_type": "bert"}, "", "model_type bert is not one of gemma,"),
    ({**QWEN3, "model_type": ["qwen3"]}, "", "model_type ['qwen3'] is not one of gemma,"),
    (
        {"model_type": "qwen2_5_vl", "text_config": QWEN3},
        "",
        "model_type qwen2_5_vl is not one of gemma,",
    ),
    (
        {**QWEN3, "architectures": ["Qwen3ForSequenceClassification"]},
        "",
        "architectures is ['Qwen3ForSequenceClassification'], expected [Qwen3ForCausalLM]",
    ),
    (
        {**QWEN3, "num_hidden_layers": 10**9},
        "",
        "num_hidden_layers is 1000000000, expected at most",
    ),
    ({**QWEN3, "num_hidden_layers": 10**40}, "", "num_hidden_layers is 10000000000"),
    ({**LLAMA, "num_attention_heads": 512}, "", "head_dim is 0, expected a size"),
    ({**QWEN3_MOE, "mlp_only_layers": 1}, "", "mlp_only_layers is 1, expected a list"),
    ({**QWEN3_MOE, "num_experts": 0}, "", "num_experts is 0, expected a size"),
    (
        {**QWEN3_MOE, "num_local_experts": 4},
        "",
        "num_experts is 8 and num_local_experts is 4, expected one number",
    ),
    ({**QWEN3, "torch_dtype": "a\nb"}, "", "say what vLLM runs with"),
    ({**QWEN3, "num_key_value_heads": None}, "", "num_key_value_heads is None, expected a size"),
    (
        {**QWEN3_MOE, "model_type": "qwen2_moe"},
        "",
        "shared_expert_intermediate_size is None, expected a size",
    ),
    ({**QWEN3, "hidden_size": None}, "", "hidden_size is None, expected a size"),
    ({**QWEN3, "vocab_size": -1}, "", "vocab_size is -1, expected a size"),
    ({**QWEN3, "torch_dtype": "float32"}, "", "dtype is float32, say what vLLM runs with"),
    (QWEN3, "--max-lora-rank 600", "max_lora_rank 600 is above 512, the largest vLLM accepts"),
    (QWEN3, "--max-lora-rank 6", "max_lora_rank 6 is none that vLLM accepts: 1, 8, 16"),
    (QWEN3, "--max-loras 4 --max-cpu-loras 2", "max_cpu_loras 2 is below max_loras 4"),
    (QWEN3, "--tensor-parallel 0", "tensor_parallel 0 is below 1"),
]


@pytest.mark.parametrize(("config", "flags", "message"), REFUSED)
def test_what_gives_no_profile_is_told_in_one_line(
    config: dict[str, Any],
    flags: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = model(tmp_path, config)
    result = run(capsys, "profile", folder, "--base-model", "b", *flags.split())
    assert (result.status, result.out) == (1, "")
    assert message in result.err
    assert result.err.startswith("lorafleet: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"a": ' + b"1" * 9000 + b"}",
    ],
)
def test_a_broken_config_is_told_in_one_line(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes(text)
    result = run(capsys, "profile", tmp_path, "--base-model", "b")
    assert (result.status, result.err.count("\n")) == (1, 1)


def test_what_is_no_file_is_told_and_never_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = run(capsys, "profile", tmp_path / "nowhere", "--base-model", "b")
    assert "No such file or directory" in missing.err
    os.mkfifo(tmp_path / "config.json")
    for place in (tmp_path, "/dev/zero"):
        result = run(capsys, "profile", place, "--base-model", "b")
        assert (result.status, result.err.endswith(" is not a file\n")) == (1, True)


def test_the_text_names_every_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run(capsys, "profile", model(tmp_path, QWEN3_MOE), "--base-model", "tiny/qwen3-moe")
    assert "  model.layers.0.mlp.experts.down_proj (experts) 32 -> 64" in result.out
    assert "base_model             tiny/qwen3-moe" in result.out
