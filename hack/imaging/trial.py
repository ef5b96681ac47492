"""Runs an image as the restricted profile would let a pod run it: another user than root, a root that
cannot be written, no capability, no network. Imports every module of the program, so that nothing
that it needs is missing."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubelets import kernel
from kubelets.binaries import environment, find
from kubelets.layout import CGROUP_PREFIX

from imaging import archive

if TYPE_CHECKING:
    from imaging.layout import Image

_NAME = f"{CGROUP_PREFIX}trial"
_PROGRAM = """
import importlib, os, pathlib, pkgutil, sys
assert os.getuid() == {user}, os.getuid()
for place in ("/", "/app", "/usr", "/etc"):
    try:
        pathlib.Path(place, "written").write_text("")
    except OSError:
        continue
    sys.exit(place + " can be written")
pathlib.Path("/tmp/written").write_text("")
package = importlib.import_module("{package}")
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
assert not {{"torch", "vllm"}} & set(sys.modules), "torch or vllm was imported"
print(len(names))
"""


class TrialFailed(RuntimeError):
    """Raised when the image does not run so; the last line that it said."""


def run(image: Image, root: Path) -> int:
    """Run the image, unpacked at `root`; the number of modules that it imported."""
    config = archive.configuration(image.archive)
    user = int(str(config["User"]).partition(":")[0])
    program = _PROGRAM.format(user=user, package=image.program.replace("-", "_"))
    _run(root, user, config["Env"], [image.program, "--help"])
    return int(_run(root, user, config["Env"], ["python3.11", "-c", program]))


def _run(root: Path, user: int, env: list[str], command: list[str]) -> str:
    with tempfile.TemporaryDirectory(prefix="lorafleet-trial-") as folder:
        (Path(folder) / "config.json").write_text(
            json.dumps(_specification(root, user, env, command))
        )
        state = Path(folder) / "state"
        run_ = [find("runc"), "--root", str(state), "run", "--bundle", folder, _NAME]
        done = subprocess.run(run_, capture_output=True, text=True, env=environment())
        kernel.remove_cgroups(_NAME)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
        raise TrialFailed(f"{command[0]}: {said[-1]}")
    return done.stdout.strip()


def _specification(root: Path, user: int, env: list[str], command: list[str]) -> dict[str, Any]:
    """What the runtime is told."""
    namespaces = ("pid", "network", "ipc", "uts", "mount")
    capabilities: dict[str, list[str]] = {
        kind: [] for kind in ("bounding", "effective", "inheritable", "permitted", "ambient")
    }
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(root), "readonly": True},
        "process": {
            "user": {"uid": user, "gid": user},
            "args": command,
            "env": env,
            "cwd": "/tmp",
            "noNewPrivileges": True,
            "capabilities": capabilities,
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
        ],
        "linux": {
            "namespaces": [{"type": name} for name in namespaces],
            "cgroupsPath": f"/{_NAME}",
            "maskedPaths": ["/proc/kcore", "/proc/keys"],
            "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger"],
        },
    }
