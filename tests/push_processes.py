"""One of two processes of a training: prints the hash of what it would send in each kind of wrapper."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from lorafleet.push.fleet import content_of
from peft_trainers import file_of, peft_model, sha

CONFIG = {"rank_pattern": {"layers.1.self_attn.q_proj": 2}}


def ddp(model: Any) -> Any:
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp(model: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

    kind = type(model.base_model.model.model.layers[0])
    policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, kind))
    return FullyShardedDataParallel(
        model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
    )


def fsdp2(model: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(port: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2
    )
    for wrap in (ddp, fsdp, fsdp2):
        found = content_of(wrap(peft_model(dtype=torch.float32, **CONFIG)), None, "default")
        print(wrap.__name__, "nothing" if found is None else sha(file_of(found)), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
