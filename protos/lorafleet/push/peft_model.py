"""The adapter of a PEFT model, out of whatever the training has wrapped around it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from lorafleet.errors import InvalidAdapter
from lorafleet.push import content as contents
from lorafleet.push import gathering

if TYPE_CHECKING:
    from lorafleet.push.content import Content

# torch.compile, DDP and DeepSpeed, FSDP.
_INSIDE: Final = ("_orig_mod", "module", "_fsdp_wrapped_module")


def is_module(what: Any) -> bool:
    """Return whether `what` is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(what, torch.nn.Module)


def unwrapped(model: Any) -> Any:
    """Return the PEFT model inside. Raises InvalidAdapter when there is none."""
    inner = model
    while True:
        # Not getattr: a compiled model passes on every attribute of what is inside it.
        parts = inner._modules
        wrapped = next((parts[name] for name in _INSIDE if parts.get(name) is not None), None)
        if wrapped is None:
            break
        inner = wrapped
    if not hasattr(inner, "peft_config"):
        raise InvalidAdapter(f"{type(inner).__name__} is no PEFT model: it has no peft_config")
    return inner


def content_of(model: Any, config: Any, adapter: str) -> Content | None:
    """Return the adapter's content, still in the model's memory where the model has it whole.

    In a model that is sharded over processes the main one gets a copy on the host, the others None.
    """
    inner = unwrapped(model)
    if adapter not in inner.peft_config:
        raise InvalidAdapter(
            f"the model has adapters {', '.join(inner.peft_config)}, not {adapter}"
        )
    config = config or inner.peft_config[adapter]
    if gathering.is_sharded(model):
        gathered = gathering.on_main(model, adapter)
        return (
            None if gathered is None else contents.from_tensors(gathered, config, adapter=adapter)
        )
    if not gathering.is_main():
        return None
    from peft import get_peft_model_state_dict

    found = get_peft_model_state_dict(inner, adapter_name=adapter, save_embedding_layers=False)
    return contents.from_tensors(found, config, adapter=adapter)
