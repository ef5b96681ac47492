"""Two images that only the nodes of hack/nodes need: what holds a pod's namespaces, and a vLLM without
its 6 GB, which it takes from a volume."""

from __future__ import annotations

import shutil
from pathlib import Path

from kubelets.binaries import find
from kubelets.layout import PAUSE_IMAGE

from imaging.base import PACKAGES, write_base
from imaging.buildah import build, export
from imaging.layout import IMAGES

PAUSE = IMAGES / "pause.tar"
ENGINE = IMAGES / "engine.tar"
ENGINE_IMAGE = "localhost/vllm-cpu:walk"
# Of torch and numpy; lscpu, by which vLLM counts cores, and the shell in which it asks it.
_ENGINE_PACKAGES = ("dash", "libgomp1", "libnuma1", "libsmartcols1", "libsqlite3-0", "util-linux")


def make_pause() -> Path:
    """Build the pause image, once."""
    if not PAUSE.exists():
        context = _context("pause")
        shutil.copy(find("busybox"), context / "busybox")
        build(Path(__file__).parent / "Containerfile.pause", context, PAUSE_IMAGE)
        export(PAUSE_IMAGE, PAUSE)
    return PAUSE


def make_engine() -> Path:
    """Build the engine's image, once."""
    if not ENGINE.exists():
        context = _context("engine")
        write_base(context / "base.tar", (*PACKAGES, *_ENGINE_PACKAGES))
        build(Path(__file__).parent / "Containerfile.engine", context, ENGINE_IMAGE)
        export(ENGINE_IMAGE, ENGINE)
    return ENGINE


def _context(name: str) -> Path:
    context = IMAGES / "contexts" / name
    context.mkdir(parents=True, exist_ok=True)
    return context
