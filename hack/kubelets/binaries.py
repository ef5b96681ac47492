"""Where the cluster's programs are: built ones in .cache/bin, Debian's in the PATH or unpacked."""

from __future__ import annotations

import os
import shutil

from kubelets.layout import CACHE, PACKAGES

_FOLDERS = [CACHE / "bin", PACKAGES / "usr/bin", PACKAGES / "usr/sbin"]
_LIBRARIES = PACKAGES / "usr/lib/x86_64-linux-gnu"


class NodesFailed(RuntimeError):
    """Raised when the cluster cannot be had; one line that says what to do."""


def find(name: str) -> str:
    """Return the path of a program. Raises NodesFailed if it is not there."""
    found = shutil.which(name, path=environment()["PATH"])
    if found is None:
        raise NodesFailed(f"{name} is not here: run hack/build-binaries nodes")
    return found


def environment() -> dict[str, str]:
    """What a program of the cluster needs: ours, with the unpacked packages behind the machine's own."""
    ours = dict(os.environ)
    system = ours.get("PATH", os.defpath).split(":")
    ours["PATH"] = ":".join([*system, "/usr/sbin", "/sbin", *map(str, _FOLDERS)])
    ours["LD_LIBRARY_PATH"] = str(_LIBRARIES)
    return ours
