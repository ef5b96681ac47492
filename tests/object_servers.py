"""Real servers of objects for the tests of sources: Google's, Azure's, and an OCI registry.

Each is a process that ends with its block and keeps its data in memory or in the test's folder.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from obstore.store import AzureStore
from processes import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BINARIES = Path(__file__).parents[1] / ".cache" / "bin"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = base64.b64encode(b"canary-account-key" * 4).decode()
# bcrypt of "canary-password": the registry takes no other kind.
_HTPASSWD = "ann:$2b$05$abcdefghijklmnopqrstuuTvmw3qcMpAvEgQGhbFMhqjD3R/evDDW\n"
PASSWORD = "canary-password"


@contextlib.contextmanager
def process(
    command: list[str], folder: Path, url: str, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server until the block ends; begins when it answers at `url`, whatever it says."""
    log = folder / f"{Path(command[0]).name}-{urlsplit(url).port}.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            cwd=folder,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
        )
    try:
        deadline = time.monotonic() + 120
        while server.poll() is None and time.monotonic() < deadline:
            if _answers(url):
                yield
                return
            time.sleep(0.05)
        raise RuntimeError(f"{command[0]} does not answer: {log.read_text()}")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False


def send(
    method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the headers of the answer, names in lower case."""
    # Without a body urllib must not make up a Content-Type, which a signature would not know.
    sent = dict(headers or {}) if body else {"Content-Length": "0", **(headers or {})}
    request = urllib.request.Request(url, data=body or None, method=method, headers=sent)
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        return {name.lower(): value for name, value in answer.headers.items()}


@contextlib.contextmanager
def start_gcs(folder: Path, bucket: str) -> Iterator[str]:
    """Run gcp-storage-emulator with one bucket; yields its endpoint."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory", "--quiet"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--default-bucket", bucket]
    with process(command, folder, f"{endpoint}/"):
        yield endpoint


def put_gcs(endpoint: str, bucket: str, key: str, content: bytes) -> None:
    send("PUT", f"{endpoint}/{bucket}/{quote(key)}", content)


@contextlib.contextmanager
def start_azurite(folder: Path) -> Iterator[str]:
    """Run Azurite; yields the account's endpoint."""
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    command = [str(_BINARIES / "azurite"), "--inMemoryPersistence", "--silent"]
    command += ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--disableTelemetry"]
    account = {"AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{AZURE_KEY}"}
    with process(command, folder, endpoint, account):
        yield endpoint


def azure_store(endpoint: str, container: str) -> AzureStore:
    return AzureStore(
        container,
        account_name=AZURE_ACCOUNT,
        account_key=AZURE_KEY,
        endpoint=endpoint,
        client_options={"allow_http": True},
    )


def make_container(endpoint: str, container: str) -> None:
    """Make a container: the one thing that obstore does not do."""
    date = formatdate(usegmt=True)
    headers = {"x-ms-date": date, "x-ms-version": "2023-11-03"}
    signed = "\n".join(f"{name}:{value}" for name, value in headers.items())
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}\nrestype:container"
    signature = _azure_signature("PUT" + "\n" * 12 + f"{signed}\n{resource}")
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{signature}"
    send("PUT", f"{endpoint}/{container}?restype=container", headers=headers)


def azure_sas(container: str) -> str:
    """Return a signature that lets its bearer read a container's blobs."""
    given = {"sp": "r", "se": "2199-01-01T00:00:00Z", "sv": "2023-11-03", "sr": "c"}
    resource = f"/blob/{AZURE_ACCOUNT}/{container}"
    lines = [given["sp"], "", given["se"], resource, "", "", "", given["sv"], given["sr"]]
    given["sig"] = _azure_signature("\n".join([*lines, "", "", "", "", "", "", ""]))
    return urlencode(given)


def _azure_signature(text: str) -> str:
    key = base64.b64decode(AZURE_KEY)
    return base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()


@dataclass
class Registry:
    """A running registry; `headers` let a pusher in."""

    host: str
    headers: dict[str, str] = field(default_factory=dict)

    def put_blob(self, repository: str, content: bytes) -> dict[str, Any]:
        """Push a blob; return its descriptor."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        base = f"http://{self.host}/v2/{repository}/blobs/uploads/"
        place = send("POST", base, headers=self.headers)["location"]
        mark = "&" if "?" in place else "?"
        kind = {"Content-Type": "application/octet-stream"}
        send("PUT", f"{place}{mark}digest={digest}", content, {**self.headers, **kind})
        return {
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": digest,
            "size": len(content),
        }

    def push(self, repository: str, tag: str, layers: list[dict[str, Any]]) -> str:
        """Push a manifest of these layers; return its digest."""
        config = self.put_blob(repository, b"{}")
        kind = "application/vnd.oci.image.manifest.v1+json"
        manifest = {"schemaVersion": 2, "mediaType": kind, "config": config, "layers": layers}
        config["mediaType"] = "application/vnd.oci.empty.v1+json"
        return self.put_manifest(repository, tag, kind, manifest)

    def put_manifest(self, repository: str, tag: str, kind: str, manifest: dict[str, Any]) -> str:
        url = f"http://{self.host}/v2/{repository}/manifests/{tag}"
        body = json.dumps(manifest).encode()
        answer = send("PUT", url, body, {**self.headers, "Content-Type": kind})
        return answer["docker-content-digest"]

    def push_files(
        self, repository: str, tag: str, files: Mapping[str, bytes], folder: str = ""
    ) -> str:
        """Push files as `oras push` does: one layer each, its name in an annotation."""
        return self.push(repository, tag, self.layers(repository, files, folder))

    def layers(
        self, repository: str, files: Mapping[str, bytes], folder: str = ""
    ) -> list[dict[str, Any]]:
        """Push files as blobs; return their descriptors."""
        layers = []
        for name, content in files.items():
            layer = self.put_blob(repository, content)
            layer["mediaType"] = "application/octet-stream"
            layer["annotations"] = {"org.opencontainers.image.title": f"{folder}{name}"}
            layers.append(layer)
        return layers


@contextlib.contextmanager
def start_registry(
    folder: Path,
    *,
    password: bool = False,
    token: Mapping[str, str] | None = None,
) -> Iterator[Registry]:
    """Run Debian's docker-registry: open, with a password, or with tokens.

    `token` holds realm, service, issuer and rootcertbundle.
    """
    port = free_port()
    root = folder / f"registry-{port}"
    root.mkdir()
    config: dict[str, Any] = {
        "version": "0.1",
        "log": {"level": "info"},
        "storage": {"filesystem": {"rootdirectory": str(root)}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    registry = Registry(f"127.0.0.1:{port}")
    if password:
        (root / "htpasswd").write_text(_HTPASSWD)
        config["auth"] = {"htpasswd": {"realm": "test", "path": str(root / "htpasswd")}}
        pair = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        registry.headers = {"Authorization": f"Basic {pair}"}
    if token is not None:
        config["auth"] = {"token": dict(token)}
    (root / "config.yml").write_text(json.dumps(config))
    command = [str(_BINARIES / "docker-registry"), "serve", str(root / "config.yml")]
    with process(command, folder, f"http://{registry.host}/v2/"):
        yield registry
