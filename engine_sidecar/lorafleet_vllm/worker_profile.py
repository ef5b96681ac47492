"""What this engine can take, read in a worker: the EngineProfile of preflight and layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from lorafleet.profile import EngineProfile

import lorafleet_vllm

if TYPE_CHECKING:
    from lorafleet_vllm.residency import Residency

_FLAGS = (
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
    "fully_sharded_loras",
    "enable_tower_connector_lora",
)


def read_profile(vllm_config: Any, residency: Residency) -> EngineProfile:
    """Return the profile; features are those of the whole layer, however it is sharded."""
    model, lora = vllm_config.model_config, vllm_config.lora_config
    parallel = vllm_config.parallel_config
    served = model.served_model_name
    names = [served] if isinstance(served, str) else list(served or [])
    aliases = [*names[1:], model.model]
    text = model.hf_config.get_text_config()
    return EngineProfile(
        base_model=names[0] if names else model.model,
        base_model_aliases=tuple(dict.fromkeys(aliases)),
        dtype=str(lora.lora_dtype).removeprefix("torch."),
        max_lora_rank=lora.max_lora_rank,
        max_loras=lora.max_loras,
        max_cpu_loras=lora.max_cpu_loras,
        vocab_size=model.get_vocab_size(),
        num_hidden_layers=int(getattr(text, "num_hidden_layers", 0)),
        tensor_parallel_size=parallel.tensor_parallel_size,
        expert_parallel=bool(parallel.enable_expert_parallel),
        vllm_version=vllm.__version__,
        plugin_version=lorafleet_vllm.__version__,
        flags=tuple(flag for flag in _FLAGS if getattr(lora, flag, False)),
        modules=tuple(target.module for target in residency.targets.values()),
    )
