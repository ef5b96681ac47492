"""Builds models in vLLM with random weights and prints which modules take LoRA.

    python tests/live_modules.py MODEL_DIR...      one line of JSON for each, in this order

A process of its own: vLLM's parallel state is one for a process. Give a MoE model first, for vLLM
makes the group of expert parallelism only then.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any


def live_modules(folder: str) -> list[dict[str, Any]]:
    """Return the modules of the model in `folder` as the plugin reads them; last, its slot's bytes."""
    import torch
    from lorafleet_vllm.slot_plan import slot_tensors
    from lorafleet_vllm.targets import read_targets
    from vllm.config import set_current_vllm_config
    from vllm.distributed import (
        init_distributed_environment,
        initialize_model_parallel,
        model_parallel_is_initialized,
    )
    from vllm.engine.arg_utils import EngineArgs
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.model_executor.model_loader import get_model
    from vllm.model_executor.model_loader.utils import get_model_architecture

    config = EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enable_lora=True,
        max_lora_rank=8,
        max_loras=1,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=256,
    ).create_engine_config()
    with set_current_vllm_config(config):
        if not model_parallel_is_initialized():
            init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
            initialize_model_parallel(1, 1)
        # A model writes into its class's table; the next one of the class must not find it.
        cls = get_model_architecture(config.model_config)[0]
        cls.packed_modules_mapping = dict(cls.packed_modules_mapping)
        original = cls.packed_modules_mapping.copy()
        model = get_model(vllm_config=config)
        cpu = torch.device("cpu")
        manager = LoRAModelManager(model, 2, 64, 512, config.lora_config, cpu, config)
        found = [asdict(target.module) for target in read_targets(manager).values()]
        layers = manager.modules.values()
        found.append({"slot_bytes": sum(t.nbytes for each in layers for t in slot_tensors(each))})
        cls.packed_modules_mapping = original
        return found


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(json.dumps(live_modules(path)), flush=True)
