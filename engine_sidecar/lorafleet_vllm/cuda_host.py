"""Page-locked host memory of others: the driver calls that torch does not expose whole.

They go through the libcudart that torch has loaded, because a refused registration leaves an
error behind that torch's next call would report, and only the library can clear it.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

_PORTABLE = 0x01  # valid in every CUDA context
_READ_ONLY = 0x08
_READ_ONLY_SUPPORTED = 113  # cudaDevAttrHostRegisterReadOnlySupported
_HOST_TO_DEVICE = 1
_PAGE = 4096


@functools.cache
def _library() -> ctypes.CDLL | None:
    for line in Path("/proc/self/maps").read_text().splitlines():
        name = line.rpartition(" ")[2]
        if "libcudart" in name:
            library = ctypes.CDLL(name)
            address, size = ctypes.c_void_p, ctypes.c_size_t
            library.cudaMemcpy2DAsync.argtypes = [
                *(address, size, address, size, size, size, ctypes.c_int, address)
            ]
            return library
    return None


def _read_only_supported(library: ctypes.CDLL) -> bool:
    device, value = ctypes.c_int(), ctypes.c_int()
    if library.cudaGetDevice(ctypes.byref(device)):
        return False
    if library.cudaDeviceGetAttribute(ctypes.byref(value), _READ_ONLY_SUPPORTED, device):
        return False
    return bool(value.value)


def register(memory: torch.Tensor, *, read_only: bool) -> bool:
    """Register the bytes of `memory` with the driver; False if it refused, with no trace left."""
    library = _library()
    if library is None or (read_only and not _read_only_supported(library)):
        return False
    size = -(-memory.numel() * memory.element_size() // _PAGE) * _PAGE
    flags = _PORTABLE | (_READ_ONLY if read_only else 0)
    status = library.cudaHostRegister(
        ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(size), ctypes.c_uint(flags)
    )
    if status:
        library.cudaGetLastError()
    return not status


def copy_rows(
    target: torch.Tensor,
    source: torch.Tensor,
    width: int,
    height: int,
    target_pitch: int,
    source_pitch: int,
    largest: int | None = None,
) -> bool:
    """Copy `height` rows of `width` bytes from the host to the device, on torch's current stream.

    In pieces of at most `largest` bytes, if given. Returns False, with nothing done, where torch's
    device is not CUDA's. Raises RuntimeError with the driver's number.
    """
    library = _library()
    if library is None:
        return False
    stream = torch.cuda.current_stream(target.device).cuda_stream
    to, come = target.data_ptr(), source.data_ptr()
    wide = min(width, largest or width)  # a row that is too long alone is cut itself
    tall = max(1, (largest or width * height) // wide) if wide == width else 1
    for row in range(0, height, tall):
        for column in range(0, width, wide):
            status = library.cudaMemcpy2DAsync(
                to + row * target_pitch + column,
                target_pitch,
                come + row * source_pitch + column,
                source_pitch,
                min(wide, width - column),
                min(tall, height - row),
                _HOST_TO_DEVICE,
                stream,
            )
            if status:
                library.cudaGetLastError()
                raise RuntimeError(
                    f"cudaMemcpy2DAsync of {height} rows of {width} bytes failed: {status}"
                )
    return True
