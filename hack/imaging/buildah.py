"""buildah without a daemon, a registry or a container runtime: steps run in a chroot."""

from __future__ import annotations

import subprocess
from pathlib import Path

from kubelets.binaries import environment, find
from kubelets.layout import PACKAGES

from imaging.layout import BASE, IMAGES

_STORE = IMAGES / "store"
_POLICY = PACKAGES / "etc" / "containers" / "policy.json"
# It starts itself again with an empty environment, for each step of a build, and looks for its
# libraries where Debian installs them: in mounts of its own, the unpacked packages lie there.
_INSTALLED = 'mount -t overlay -o "lowerdir=$0/usr:/usr" lorafleet-usr /usr && exec buildah "$@"'


class BuildFailed(RuntimeError):
    """Raised when buildah fails; its last line, and where all of it is."""


def build(containerfile: Path, context: Path, reference: str, base: str = BASE) -> None:
    """Build an image. Nothing is pulled, and all times in it are the epoch."""
    arguments = ["--pull-never", "--timestamp", "0", "--build-arg", f"BASE={base}"]
    _buildah("build", *_policy(), *arguments, "-t", reference, "-f", containerfile, context)


def export(reference: str, archive: Path) -> None:
    """Write an image as an OCI archive."""
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _buildah("push", *_policy(), reference, f"oci-archive:{partial}:{reference}")
    partial.rename(archive)


def exists(reference: str) -> bool:
    """Whether the store holds an image."""
    try:
        _buildah("inspect", "--type", "image", reference)
    except BuildFailed:
        return False
    return True


def _policy() -> list[str | Path]:
    return ["--signature-policy", _POLICY] if _POLICY.exists() else []


def _buildah(*arguments: str | Path) -> str:
    _STORE.mkdir(parents=True, exist_ok=True)
    settings = IMAGES / "storage.conf"
    settings.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{_STORE}"\nrunroot = "{IMAGES}/running"\n'
    )
    settled = {
        **environment(),
        "BUILDAH_ISOLATION": "chroot",
        "CONTAINERS_STORAGE_CONF": str(settings),
        "CONTAINERS_REGISTRIES_CONF": "/dev/null",
    }
    if Path(find("buildah")).is_relative_to(PACKAGES):
        command = ["unshare", "--mount", "sh", "-c", _INSTALLED, str(PACKAGES)]
    else:
        command = ["buildah"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, env=settled)
    with (IMAGES / "build.log").open("a") as log:
        log.write(f"$ buildah {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}")
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise BuildFailed(f"buildah {arguments[0]}: {said[-1]} (log: {IMAGES / 'build.log'})")
    return done.stdout.strip()
