"""Moving tensors that were born on the device to page-locked host memory, once."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import torch

from lorafleet_vllm.tensor_tree import model_tensors, replace_tensors

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_View = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]


class HostCopies:
    """Host copies of device tensors: equal views share one copy, other views have their own.

    A copy has the source's shape and strides. `nbytes` counts each copy once.
    """

    def __init__(self) -> None:
        self._copies: dict[_View, torch.Tensor] = {}
        self._sources: list[torch.Tensor] = []
        self.nbytes = 0

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the host copy of `tensor`, started if there is none; `finish` completes it."""
        repeated = [
            size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        ]
        if any(repeated):  # an expanded view: its memory has only one of each repeated row
            compact = tensor[tuple(slice(0, 1) if again else slice(None) for again in repeated)]
            return _mark(self.of(compact).expand(tensor.shape))
        key = _view(tensor)
        if key not in self._copies:
            host = torch.empty_strided(
                tensor.shape,
                tensor.stride(),
                dtype=tensor.dtype,
                pin_memory=tensor.device.type == "cuda",
            )
            host.copy_(tensor, non_blocking=True)
            # The key is an address: the source must live until all copies are started.
            self._sources.append(tensor)
            self._copies[key] = _mark(host)
            self.nbytes += host.untyped_storage().nbytes()
        return self._copies[key]

    def finish(self, device: torch.device) -> None:
        """Wait for the copies (one synchronisation) and let the sources go."""
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        self._sources.clear()
        self._copies.clear()


def offload(model: Any, staged: dict[str, torch.Tensor], device: torch.device) -> int:
    """Move the tensors of `model` and of `staged` from `device` to the host, in place.

    Returns the host bytes taken. Tensors that are on the host already are left alone, so that a
    second call moves nothing and returns 0. Device memory goes back to the driver.
    """
    tensors = [*model_tensors(model), *staged.values()]
    if not any(_on(tensor, device) for tensor in tensors):
        return 0
    copies = HostCopies()
    with torch.inference_mode(mode=False):  # a copy must be usable outside of inference too
        replace_tensors(model, lambda t: copies.of(t) if _on(t, device) else t)
        for name, tensor in staged.items():
            if _on(tensor, device):
                staged[name] = copies.of(tensor)
    del tensors
    copies.finish(device)
    release(device)
    return copies.nbytes


def _mark(host: torch.Tensor) -> torch.Tensor:
    host._lorafleet_host = True
    return host


def _on(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether `tensor` is still where it was born; on a CPU engine only the mark tells."""
    return tensor.device.type == device.type and not getattr(tensor, "_lorafleet_host", False)


def release(device: torch.device) -> None:
    """Give cached device memory back to the driver."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


def total_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages of `tensors`."""
    return sum(_storages(tensors))


def pinned_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the page-locked bytes behind `tensors`; on a machine without CUDA all of their bytes.

    torch rounds each block up to a power of two (CachingHostAllocator).
    """
    sizes = _storages(tensors)
    if torch.cuda.is_available():
        return sum(1 << (size - 1).bit_length() for size in sizes if size)
    return sum(sizes)


def _storages(tensors: Iterable[torch.Tensor]) -> Collection[int]:
    """Return the sizes of the distinct storages of `tensors`."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}.values()


def _view(tensor: torch.Tensor) -> _View:
    return (
        tensor.untyped_storage().data_ptr(),
        tensor.storage_offset(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
    )
