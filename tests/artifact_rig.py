"""Artifacts of OCI registries, real ones and of the tests' own, for the tests of sources."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

from object_servers import PASSWORD
from object_source_rig import opened
from servers import LyingServer
from source_builders import artifact as built

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Source

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
REPOSITORY = "team-a/sql_v1/x"
LOGIN = {"username": b"ann", "password": PASSWORD.encode()}


def artifact(
    host: str, version: str = ":v1", secret: dict[str, bytes] | None = None, **more: Any
) -> Source:
    reference = f"{host}/{more.pop('repository', REPOSITORY)}{version}"
    return opened("oci", {"reference": reference, "plainHttp": True}, secret, **more)


def index_of(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": INDEX, "manifests": list(entries)}


def entry(digest: str, **more: Any) -> dict[str, Any]:
    return {"mediaType": MANIFEST, "digest": digest, "size": 1, **more}


def lying(files: dict[str, bytes]) -> LyingServer:
    """A registry by hand, whose blobs may be other than their digests say."""
    return LyingServer(etag=None, files=built(files, REPOSITORY, "v1"))


def blob_path(content: bytes) -> str:
    return f"/v2/{REPOSITORY}/blobs/sha256:{hashlib.sha256(content).hexdigest()}"


def docker_config(host: str, pair: str = f"ann:{PASSWORD}") -> dict[str, bytes]:
    auth = base64.b64encode(pair.encode()).decode()
    return {".dockerconfigjson": json.dumps({"auths": {host: {"auth": auth}}}, indent=1).encode()}
