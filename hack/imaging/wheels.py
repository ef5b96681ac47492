"""The folder that a Containerfile copies: wheels of the lock, of this checkout, and an installer."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from imaging.layout import IMAGES, REPOSITORY, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imaging.layout import Image

_KEPT = IMAGES / "wheels"
"""Downloads, kept between builds: a lock names each version once."""


class WheelsFailed(RuntimeError):
    """Raised when wheels cannot be had; one line."""


def write_context(image: Image) -> None:
    """Write `image.context` anew."""
    pinned = [line for line in image.lock.read_text().splitlines() if "==" in line]
    folder = image.context
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    _KEPT.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text("\n".join(pinned) + "\n")
    download = (
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--disable-pip-version-check",
    )
    kept = str(_KEPT)
    here = ["-d", kept, "--find-links", kept, "-r", str(wanted)]
    _run([sys.executable, "-m", "pip", *download, *here])
    own = _own_wheel(folder / "wheels")
    for wheel in _of_lock(pinned):
        shutil.copy(wheel, folder / "wheels")
    wanted.write_text("\n".join([*pinned, f"lorafleet=={VERSION}"]) + "\n")
    shutil.copy(Path(sys.executable).parent / "uv", folder / "uv")
    shutil.copy(Path(__file__).parent / "install.py", folder)
    assert own.exists()


def _of_lock(pinned: Iterable[str]) -> list[Path]:
    """The kept wheels of the pinned versions that fit here. Markers were judged by the download."""
    kept = {_key(*path.name.split("-")[:2]): path for path in sorted(_KEPT.glob("*.whl"))}
    keys = (_key(*line.split(";")[0].strip().split("==")) for line in pinned)
    return [kept[key] for key in keys if key in kept]


def _key(name: str, version: str) -> tuple[str, str]:
    return name.lower().replace("-", "_").replace(".", "_"), version


def _own_wheel(folder: Path) -> Path:
    """Build this checkout's wheel into `folder`."""
    _run(
        [
            Path(sys.executable).parent / "uv",
            "build",
            "--quiet",
            "--wheel",
            "-o",
            folder,
            REPOSITORY,
        ]
    )
    return next(folder.glob(f"lorafleet-{VERSION}-*.whl"))


def digests(context: Path) -> dict[str, str]:
    """SHA-256 of each wheel of a context, by its file's name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((context / "wheels").glob("*.whl"))
    }


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason given"]
        raise WheelsFailed(f"{Path(command[0]).name} {command[1]}: {said[-1]}")
