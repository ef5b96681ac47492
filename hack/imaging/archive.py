"""Reads an OCI archive of one image: what is shipped, not what the builder's store holds."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def configuration(archive: Path) -> dict[str, Any]:
    """The image's `config`: user, environment, entry point."""
    with tarfile.open(archive) as tar:
        config: dict[str, Any] = _described(tar, "config")["config"]
        return config


def unpack(archive: Path, root: Path) -> None:
    """Put the image's files into the empty folder `root`, layer over layer."""
    with tarfile.open(archive) as tar:
        for layer in _manifest(tar)["layers"]:
            with tarfile.open(fileobj=io.BytesIO(_blob(tar, layer["digest"]))) as files:
                removed = [member.name for member in files if ".wh." in member.name]
                if removed:  # our images only add
                    raise ValueError(f"{archive.name}: a layer removes {removed[0]}")
                files.extractall(root, filter="fully_trusted")


def digest(archive: Path) -> str:
    """The digest by which a registry would know the image."""
    with tarfile.open(archive) as tar:
        return str(_index(tar)["digest"])


def _described(tar: tarfile.TarFile, part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_blob(tar, _manifest(tar)[part]["digest"]))
    return found


def _manifest(tar: tarfile.TarFile) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_blob(tar, _index(tar)["digest"]))
    return found


def _index(tar: tarfile.TarFile) -> dict[str, Any]:
    index = json.loads(_read(tar, "index.json"))
    found: dict[str, Any] = index["manifests"][0]
    return found


def _blob(tar: tarfile.TarFile, digest_: str) -> bytes:
    return _read(tar, f"blobs/{digest_.replace(':', '/')}")


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is not a file")
    return file.read()
