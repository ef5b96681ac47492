"""An adapter that is spread over the processes of a training, brought to the main one."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from lorafleet.push import names

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_main() -> bool:
    """Return whether this process is the one that sends."""
    distributed = _distributed()
    return distributed is None or distributed.get_rank() == 0


def is_sharded(model: Any) -> bool:
    """Return whether no process has the whole of the model's tensors."""
    return any(
        hasattr(tensor, "full_tensor") or hasattr(tensor, "ds_id") for tensor in model.parameters()
    ) or any(True for _ in _fsdp_units(model))


def on_main(model: Any, adapter: str) -> dict[str, Any] | None:
    """Return the adapter's tensors by name, on the host of the main process; None in the others.

    A collective: every process has to call it. Tensors are gathered one after another, never the base
    model's; of FSDP unit after unit, with what else is in a unit that holds some.
    """
    found: dict[str, Any] = {}
    for prefix, unit, summon in _units(model):
        with ExitStack() as stack:
            if summon is not None:
                stack.enter_context(summon(unit))
            for name, tensor in unit.named_parameters():
                plain = names.plain(f"{prefix}{name}", adapter)
                if plain is None:
                    continue
                whole = _whole(tensor)
                if is_main():
                    found[plain] = whole.to("cpu", copy=True)
    return found if is_main() else None


def _units(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (prefix, module, what makes its own parameters whole) of what holds LoRA tensors.

    The outermost come first, as FSDP wants it: a unit shows the parameters of those inside it too, not
    whole, and what these show afterwards counts.
    """
    fsdp = list(_fsdp_units(model))
    if not fsdp:
        yield "", model, None
        return
    whole = sys.modules["torch.distributed.fsdp"].FullyShardedDataParallel.summon_full_params
    for prefix, unit in fsdp:
        # By the modules: without use_orig_params a unit has one parameter, which no name tells apart.
        if any("lora_" in f"{prefix}{name}" for name, _ in unit.named_modules()):
            yield prefix, unit, lambda each: whole(each, recurse=False, writeback=False)


def _fsdp_units(model: Any) -> Iterator[tuple[str, Any]]:
    module = sys.modules.get("torch.distributed.fsdp")
    if module is None:
        return
    for name, each in model.named_modules():
        if isinstance(each, module.FullyShardedDataParallel):
            yield f"{name}." if name else "", each


def _whole(tensor: Any) -> Any:
    if hasattr(tensor, "full_tensor"):  # FSDP2
        return tensor.detach().full_tensor()
    if hasattr(tensor, "ds_id"):  # DeepSpeed ZeRO-3
        zero = sys.modules["deepspeed"].zero
        with zero.GatheredParameters([tensor]):
            return tensor.detach().clone()
    return tensor.detach()


def _distributed() -> Any:
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def from_main(value: Any) -> Any:
    """Return what the main process has for `value`. A collective, if there are several processes."""
    distributed = _distributed()
    if distributed is None:
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]
