"""What a node changes outside of its namespaces: control groups and the settings of one kernel."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubelets.layout import Node

CGROUPS = Path("/sys/fs/cgroup")
_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
"""What a kubelet sets for the whole machine."""
_EMPTY_SECONDS = 60.0


def save_settings(file: Path, root: Path = Path("/proc/sys")) -> None:
    """Note the settings in `file`, unless an earlier start noted them already."""
    if not file.exists():
        present = {name: root / name for name in _SETTINGS if (root / name).exists()}
        file.write_text(json.dumps({name: path.read_text() for name, path in present.items()}))


def restore_settings(file: Path, root: Path = Path("/proc/sys")) -> None:
    """Put back what `save_settings` noted, and forget the note."""
    if not file.exists():
        return
    for name, value in json.loads(file.read_text()).items():
        if (root / name).read_text() != value:
            (root / name).write_text(value)
    file.unlink()


def hierarchies(root: Path = CGROUPS) -> list[Path]:
    """The roots under which control groups are made: one of version 2, or several of version 1."""
    if (root / "cgroup.controllers").exists():
        return [root]
    if not root.is_dir():
        return []
    mounted = [path for path in sorted(root.iterdir()) if path.is_dir() and not path.is_symlink()]
    return [path for path in mounted if (path / "cgroup.procs").exists()]


def make_cgroups(node: Node) -> None:
    """Make the node's group in each hierarchy: a kubelet of version 1 does not."""
    for root in hierarchies():
        group = root / node.cgroup
        group.mkdir(exist_ok=True)
        for inherited in ("cpuset.cpus", "cpuset.mems"):
            if (group / inherited).exists() and not (group / inherited).read_text().strip():
                (group / inherited).write_text((root / inherited).read_text())


def remove_cgroups(prefix: str) -> None:
    """Remove the groups whose names begin with `prefix`; what ran in them has just been killed."""
    deadline = time.monotonic() + _EMPTY_SECONDS
    while left := [group for root in hierarchies() for group in root.glob(f"{prefix}*")]:
        for group in left:
            inner = [path for path in group.rglob("*") if path.is_dir()]
            for path in [*sorted(inner, key=lambda path: -len(path.parts)), group]:
                with contextlib.suppress(OSError):
                    path.rmdir()
        if time.monotonic() > deadline:
            raise OSError(f"control group {left[0]} is not empty")
        time.sleep(0.1)
