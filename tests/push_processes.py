"""One of two processes of a training: prints the hash of what it would send in each kind of wrapper,
before and after a step of the training."""

from __future__ import annotations

import functools
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from lorafleet.push.fleet import content_of
from peft_trainers import file_of, peft_model, sha

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG = {"rank_pattern": {"layers.1.self_attn.q_proj": 2}}
ROWS = torch.arange(24).reshape(2, 12)
"""Sentences that all processes share: so their step is that of one process alone."""


def new_model() -> Any:
    return peft_model(dtype=torch.float32, **CONFIG)


def ddp(model: Any) -> Any:
    return torch.nn.parallel.DistributedDataParallel(model)


def compiled_ddp(model: Any) -> Any:
    return torch.compile(ddp(model), backend="eager")


def fsdp(model: Any, **options: Any) -> Any:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy

    kind = type(model.base_model.model.model.layers[0])
    policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, kind))
    given = {"auto_wrap_policy": policy, "use_orig_params": True, **options}
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **given)


def fsdp_of_peft(model: Any) -> Any:
    """As PEFT has it for quantised models: one parameter a unit, each factor a unit of its own."""
    from peft.utils.other import fsdp_auto_wrap_policy

    return fsdp(model, auto_wrap_policy=fsdp_auto_wrap_policy(model), use_orig_params=False)


def fsdp2(model: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def compiled_fsdp2(model: Any) -> Any:
    return torch.compile(fsdp2(model), backend="eager")


class Gathered:
    """DeepSpeed's GatheredParameters: the parameters are whole within the block, in every process."""

    def __init__(self, parameters: list[Any]) -> None:
        self._parameters = parameters

    def __enter__(self) -> None:
        self._parts = [each.data for each in self._parameters]
        for each, part in zip(self._parameters, self._parts, strict=True):
            parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, part)
            each.data = torch.cat(parts)[: each.ds_shape.numel()].view(each.ds_shape)

    def __exit__(self, *_: object) -> None:
        for each, part in zip(self._parameters, self._parts, strict=True):
            each.data = part


def zero3(model: Any) -> Any:
    """Spread the parameters as DeepSpeed does: a flat part in each process, `ds_id` and `ds_shape`."""
    sys.modules["deepspeed"] = SimpleNamespace(zero=SimpleNamespace(GatheredParameters=Gathered))  # type: ignore[assignment]
    for number, each in enumerate(model.parameters()):
        each.ds_id, each.ds_shape = number, each.shape
        size = -(-each.numel() // dist.get_world_size())
        flat = torch.cat([each.data.flatten(), each.data.new_zeros(size)])
        each.data = flat[dist.get_rank() * size :][:size].clone()
    return model


WRAPPERS = (ddp, compiled_ddp, fsdp, fsdp_of_peft, fsdp2, compiled_fsdp2)


def trained(model: Any) -> Any:
    """Take a step of the training."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    model(input_ids=ROWS, labels=ROWS).loss.backward()
    optimizer.step()
    return model


def trained_whole(model: Any) -> Any:
    """Take the step while the parameters are whole, and spread them again."""
    with Gathered([*model.parameters()]):
        trained(model)
        changed = [each.data for each in model.parameters()]
    for each, whole in zip(model.parameters(), changed, strict=True):
        each.data = whole
    return zero3(model)


def sent(model: Any) -> str:
    """Return the hash of what this process would send."""
    found = content_of(model, None, "default")
    return "nothing" if found is None else sha(file_of(found))


def tell(name: str, model: Any, train: Callable[[Any], Any]) -> None:
    """Print what would be sent before and after the training of `train`."""
    print("sends", name, sent(model), sent(train(model)), flush=True)


def main(port: str, rank: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=2
    )
    tell("alone", new_model(), trained)
    for wrap in WRAPPERS:
        tell(wrap.__name__, wrap(new_model()), trained)
    tell("zero3", zero3(new_model()), trained_whole)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
