"""What an image may not hold: pure looks at its unpacked files and its configuration."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING, Any

from imaging.install import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DISTRIBUTIONS = re.compile(r"(torch|vllm|triton|nvidia|cuda|pip|setuptools|uv|wheel|pytest)[-_]")
"""Python packages that belong into an engine, a build or a test."""
PROGRAMS = frozenset(
    (
        "apt",
        "apt-get",
        "as",
        "bash",
        "cc",
        "clang",
        "cpp",
        "curl",
        "dash",
        "dpkg",
        "g++",
        "gcc",
        "gdb",
        "go",
        "ld",
        "make",
        "perl",
        "pip",
        "rustc",
        "sh",
        "strace",
        "su",
        "sudo",
        "wget",
    )
)
"""Compilers, shells, package managers and what fetches from a network."""
_SECRET_FILES = re.compile(
    r"(\.netrc|\.pypirc|pip\.conf|id_(rsa|ecdsa|ed25519)|\.git|direct_url\.json)"
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}")
_CREDENTIALS = re.compile(rb"https?://[\w.-]+:[\w.-]{8,}@[\w.-]+")
_ENVIRONMENT = frozenset(
    ("HOME", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONUNBUFFERED", "SSL_CERT_FILE")
)
_LARGEST_SCANNED = 4 << 20


def violations(root: Path, largest_mib: int) -> Iterator[str]:
    """A line for each thing in the image's files that may not be there."""
    total = 0
    for path in sorted(root.rglob("*")):
        shown = f"/{path.relative_to(root)}"
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            continue
        total += status.st_size if path.is_file() else 0
        yield from _of_mode(shown, status.st_mode)
        yield from _of_name(path, shown)
        if path.is_file():
            yield from _of_content(path, shown)
    for folder in root.glob("app/*.dist-info"):
        if DISTRIBUTIONS.match(folder.name.lower()):
            yield f"/{folder.relative_to(root)} is not for this image"
    if total > largest_mib << 20:
        yield f"{total >> 20} MiB of files, at most {largest_mib} MiB are allowed"


def _of_mode(shown: str, mode: int) -> Iterator[str]:
    if mode & (stat.S_ISUID | stat.S_ISGID):
        yield f"{shown} changes its user or group when it is run"
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        yield f"{shown} can be written by everybody"


def _of_name(path: Path, shown: str) -> Iterator[str]:
    if path.is_dir():
        if path.name in TESTS and "/app/" in shown:
            yield f"{shown} are tests"
        return
    if path.name in PROGRAMS and path.parent.name in ("bin", "sbin"):
        yield f"{shown} is a program that the image has no use for"
    if _SECRET_FILES.fullmatch(path.name):
        yield f"{shown} may hold a secret"


def _of_content(path: Path, shown: str) -> Iterator[str]:
    if path.stat().st_size > _LARGEST_SCANNED:
        return
    content = path.read_bytes()
    if _PRIVATE_KEY.search(content):
        yield f"{shown} holds a private key"
    if path.suffix != ".py" and path.suffix != ".pyc" and (found := _CREDENTIALS.search(content)):
        yield f"{shown} holds a password in an address: {found[0][:12]!r}..."


def misconfigured(config: Mapping[str, Any]) -> Iterator[str]:
    """A line for each thing in the image's configuration that may not be so."""
    user = str(config.get("User", "")).partition(":")[0]
    if not user.isdigit() or int(user) == 0:
        yield f"user {user!r}: a number above 0 is what runAsNonRoot can judge"
    for variable in config.get("Env", ()):
        if variable.partition("=")[0] not in _ENVIRONMENT:
            yield f"environment variable {variable.partition('=')[0]} was not expected"
    if not config.get("Entrypoint"):
        yield "no entry point"


def size(root: Path) -> int:
    """Bytes of all files."""
    return sum(
        path.stat().st_size for path in root.rglob("*") if path.is_file() and not path.is_symlink()
    )
