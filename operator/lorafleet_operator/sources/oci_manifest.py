"""An OCI artifact's manifest: which layer is which file. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from lorafleet.errors import InvalidAdapter

from lorafleet_operator.sources.bounds import CONFIG, one_line

MAX_MANIFEST_BYTES = 4 << 20
"""Cap of a manifest, bytes: what registries themselves allow."""
MAX_LAYERS = 1024
ACCEPT = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REFERENCE_TYPE = "vnd.docker.reference.type"
_TITLE = "org.opencontainers.image.title"


@dataclass(frozen=True)
class Layer:
    """One blob that a manifest names."""

    digest: str
    size: int


def read_manifest(raw: bytes, uri: str) -> dict[str, Layer]:
    """Return the layers by their files' names, as `oras push` writes them.

    The folder that holds the config is the adapter's. Raises `InvalidAdapter` for a manifest that is
    none, and for files that are packed into a tar.
    """
    manifest = _manifest(raw, uri)
    if "manifests" in manifest:
        raise InvalidAdapter(f"{uri} is an index in an index; name a manifest by its digest")
    layers = manifest.get("layers")
    if not isinstance(layers, list) or len(layers) > MAX_LAYERS:
        raise InvalidAdapter(f"{uri}: the manifest has no list of at most {MAX_LAYERS} layers")
    found: dict[str, Layer] = {}
    for entry in layers:
        title, layer = _layer(entry, uri)
        if title in found:
            raise InvalidAdapter(f"{uri}: two layers are called {one_line(title)}")
        if title:
            found[title] = layer
    found = _in_its_folder(found, uri)
    if CONFIG not in found:
        packed = [kind for entry in layers if "tar" in (kind := _media_type(entry))]
        if packed:
            raise InvalidAdapter(
                f"{uri} holds a tar layer ({one_line(packed[0], 80)}), not the adapter's files; "
                f"push {CONFIG} and adapter_model.safetensors as layers of their own "
                "(oras push does)"
            )
    return found


def sole_manifest(raw: bytes, uri: str) -> str | None:
    """Return the digest of the only manifest that an index names; None if this is no index.

    What builders add about an image's origin does not count. Raises `InvalidAdapter` for an index
    of several or none.
    """
    several = _manifest(raw, uri).get("manifests")
    if not isinstance(several, list):
        return None
    entries = [entry for entry in several if not _is_attestation(entry)]
    if len(entries) != 1:
        raise InvalidAdapter(
            f"{uri} is an index of {len(entries)} manifests; name one of them by its digest"
        )
    digest = entries[0].get("digest") if isinstance(entries[0], dict) else None
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise InvalidAdapter(f"{uri}: the index names no sha256 digest")
    return digest


def _is_attestation(entry: Any) -> bool:
    notes = entry.get("annotations") if isinstance(entry, dict) else None
    return isinstance(notes, dict) and _REFERENCE_TYPE in notes


def _manifest(raw: bytes, uri: str) -> dict[str, Any]:
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise InvalidAdapter(f"{uri}: the manifest is not a JSON object")
    return manifest


def _layer(entry: Any, uri: str) -> tuple[str, Layer]:
    if not isinstance(entry, dict):
        raise InvalidAdapter(f"{uri}: a layer of the manifest is not an object")
    digest, size, notes = entry.get("digest"), entry.get("size"), entry.get("annotations")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        raise InvalidAdapter(f"{uri}: a layer's digest is not sha256:<64 hex digits>")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidAdapter(f"{uri}: layer {digest} has no size")
    title = notes.get(_TITLE) if isinstance(notes, dict) else None
    return (title.removeprefix("./") if isinstance(title, str) else ""), Layer(digest, size)


def _media_type(entry: dict[str, Any]) -> str:
    kind = entry.get("mediaType")
    return kind if isinstance(kind, str) else ""


def _in_its_folder(found: dict[str, Layer], uri: str) -> dict[str, Layer]:
    """Return the files beside the config, wherever that is."""
    folders = [title.removesuffix(CONFIG) for title in found if title.endswith(f"/{CONFIG}")]
    if CONFIG in found or not folders:
        return found
    if len(folders) > 1:
        names = one_line(", ".join(sorted(folders)))
        raise InvalidAdapter(f"{uri} holds several adapters ({names}); push each on its own")
    inside = [title for title in found if title.startswith(folders[0])]
    return {title.removeprefix(folders[0]): found[title] for title in inside}
