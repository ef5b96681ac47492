"""An artifact in an OCI registry whose layers are the adapter's files.

A tag is resolved to its manifest's digest first, and the manifest names each file's digest: one
resolve never mixes two versions, and a digest is the whole identity of a file.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from lorafleet.errors import (
    AccessDenied,
    DigestMismatch,
    PathNotAllowed,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
)

from lorafleet_operator.sources import assemble
from lorafleet_operator.sources.connection import Connection, Target
from lorafleet_operator.sources.digested import DigestedBlob
from lorafleet_operator.sources.oci_auth import RegistryAccess
from lorafleet_operator.sources.oci_manifest import (
    ACCEPT,
    MAX_MANIFEST_BYTES,
    Layer,
    read_manifest,
    sole_manifest,
)
from lorafleet_operator.sources.remote import RemoteBlob, open_remote
from lorafleet_operator.sources.stream import Reach
from lorafleet_operator.sources.weights import read_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from lorafleet_operator.sources.base import Blob, ResolvedAdapter
    from lorafleet_operator.sources.bounds import SourceSettings
    from lorafleet_operator.sources.credentials import SecretData

_REFERENCE = re.compile(
    r"(?P<registry>[a-zA-Z0-9.-]+(?::[0-9]{1,5})?)"
    r"/(?P<repository>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_MAX_REFERENCE = 512
_DOCKER_HUB = ("docker.io", "registry-1.docker.io")
_CODES = re.compile(r"[A-Z_]{1,64}")


class OciSource:
    """The adapter that `registry/repository:tag` or `registry/repository@sha256:..` names."""

    kind = "oci"

    def __init__(
        self,
        *,
        reference: str,
        plain_http: bool,
        secret: SecretData | None,
        settings: SourceSettings,
        allow_pickle: bool = False,
        on_read: Callable[[int], None],
    ) -> None:
        found = _REFERENCE.fullmatch(reference) if len(reference) <= _MAX_REFERENCE else None
        if found is None or not (found["tag"] or found["digest"]):
            raise PathNotAllowed(
                "source.oci.reference is not registry/repository:tag "
                "or registry/repository@sha256:<64 hex digits>"
            )
        registry = found["registry"]
        host = "registry-1.docker.io" if registry in _DOCKER_HUB else registry
        self.uri = f"oci://{reference}"
        self._registry, self._repository = registry, found["repository"]
        self._digest = found["digest"]
        self._version = found["digest"] or found["tag"]  # of both the digest counts
        self._base = f"{'http' if plain_http else 'https'}://{host}"
        connection = Connection(
            self.uri,
            settings,
            ca_bundle=secret.ca_bundle() if secret else None,
            ca_label=secret.label if secret else "",
        )
        self._connection = connection
        self._access = RegistryAccess(connection, self._base, self._repository, secret)
        self._reach = Reach(connection, settings, self._explain, on_read)
        self._settings = settings
        self._allow_pickle = allow_pickle
        self._trees: list[_Artifact] = []

    async def resolve(self) -> ResolvedAdapter:
        """Resolve the tag to a digest, then read header and config of what that holds."""
        raw, digest = await self._manifest(self._version, self._digest)
        inner = sole_manifest(raw, self.uri)
        if inner is not None:
            raw, _ = await self._manifest(inner, inner)
        layers = read_manifest(raw, self.uri)
        files = _Artifact(self.uri, self._reach, layers, self._locate_blob)
        self._trees.append(files)
        found = await assemble.resolve(files, self._settings, allow_pickle=self._allow_pickle)
        # Digests do not move; whether the content is theirs shows when all of it was read.
        return replace(found, revision=digest, whole=True, checks=(files.verify,))

    async def aclose(self) -> None:
        """Close the connections."""
        for files in self._trees:
            files.close()
        await self._connection.aclose()

    async def _manifest(self, version: str, wanted: str | None) -> tuple[bytes, str]:
        """Return a manifest and its digest, which is `wanted` if that is given."""

        async def locate() -> Target:
            headers = {"Accept": ACCEPT, **await self._access.headers()}
            return Target(f"{self._base}/v2/{self._repository}/manifests/{version}", headers)

        blob = await open_remote(self._reach, "manifest", locate, MAX_MANIFEST_BYTES)
        if blob is None:
            raise self._not_found("404")
        try:
            raw = await read_whole(blob, MAX_MANIFEST_BYTES)
        finally:
            blob.close()
        digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        if wanted is not None and digest != wanted:
            raise DigestMismatch(
                f"{self.uri}: the manifest has the digest {digest}, asked for was {wanted}"
            )
        return raw, digest

    async def _locate_blob(self, digest: str) -> Target:
        headers = await self._access.headers()
        return Target(f"{self._base}/v2/{self._repository}/blobs/{digest}", headers)

    def _not_found(self, answer: str) -> SourceNotFound:
        return SourceNotFound(
            f"{self._registry} has no {self._repository} at {self._version} ({answer})"
        )

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        del headers
        code = _code(body)
        answer = f"{status} {code}".strip()
        if code in ("NAME_UNKNOWN", "MANIFEST_UNKNOWN"):
            return self._not_found(answer)
        if status in (401, 403):
            return AccessDenied(f"{answer} from {self.uri}: {self._access.sent()}")
        if status == 404:
            return None
        return SourceUnavailable(f"{answer} from {self.uri}")


class _Artifact:
    """The files that one manifest names."""

    def __init__(
        self,
        uri: str,
        reach: Reach,
        layers: Mapping[str, Layer],
        locate: Callable[[str], Awaitable[Target]],
    ) -> None:
        self.uri = uri
        self._reach = reach
        self._layers = layers
        self._locate = locate
        self._opened: list[RemoteBlob] = []
        self._digested: list[DigestedBlob] = []

    async def open(self, name: str) -> Blob | None:
        """Return the file, None if the manifest names none of that name."""
        layer = self._layers.get(name)
        if layer is None:
            return None
        limit = self._reach.settings.max_file_bytes(name)
        blob = await open_remote(self._reach, name, lambda: self._locate(layer.digest), limit)
        if blob is None:
            raise SourceNotFound(f"{name} ({layer.digest}) is not in the registry of {self.uri}")
        self._opened.append(blob)
        if blob.size != layer.size:
            raise DigestMismatch(
                f"{name} in {self.uri} has {blob.size} bytes, the manifest promises {layer.size}"
            )
        self._digested.append(DigestedBlob(blob, self.uri, layer.digest))
        return self._digested[-1]

    async def verify(self) -> None:
        """Raise `DigestMismatch` unless every file that was opened has its digest's content."""
        for blob in self._digested:
            await blob.verify()

    def close(self) -> None:
        """Close all streams."""
        for blob in self._opened:
            blob.close()


def _code(body: bytes) -> str:
    """Return the first error code of a registry's answer, "" if there is none."""
    try:
        code = json.loads(body)["errors"][0]["code"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return ""
    return code if isinstance(code, str) and _CODES.fullmatch(code) else ""
