"""A Kubernetes API of one's own: etcd and kube-apiserver on loopback, for the demo and the tests.

    with LocalCluster(directory) as cluster:
        ... cluster.kubeconfig ...

    python hack/localcluster.py up DIR      leaves it running, prints how to use it
    python hack/localcluster.py down DIR

The binaries come from KUBEBUILDER_ASSETS or .cache/bin (hack/build-binaries). There are no
controllers, no scheduler and no kubelet: pods are objects only (enginepods.py), a deleted namespace
stays Terminating. RBAC is on; the kubeconfig's user is an administrator. With
LORAFLEET_USE_KUBECONFIG=1 the cluster of KUBECONFIG is used instead and nothing is started.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

from localpki import write_pki
from processes import LocalProcess, ProcessFailed, free_port, listens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

REPOSITORY = Path(__file__).resolve().parent.parent
START_SECONDS = 120
"""How long etcd and kube-apiserver together may take: 6-10 s on two idle cores."""
ATTEMPTS = 3
"""Starts before giving up: another process may take a free port before ours listens."""


class ClusterFailed(RuntimeError):
    """Raised when the cluster cannot be had; the text says what to do."""


def find_binary(name: str) -> Path:
    """Return the path of a binary. Raises ClusterFailed if it was not built."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in [*([Path(assets)] if assets else []), REPOSITORY / ".cache" / "bin"]:
        if os.access(folder / name, os.X_OK):
            return folder / name
    raise ClusterFailed(f"{name} is not here: run hack/build-binaries")


class LocalCluster:
    """One etcd and one kube-apiserver; state, keys and logs lie in `directory`.

    kubeconfig, url, ca_file and token are valid after `start`; of somebody else's cluster only
    kubeconfig is known.
    """

    def __init__(self, directory: Path, *, quiet: bool = False) -> None:
        self.directory = directory.resolve()
        self.kubeconfig = self.directory / "kubeconfig"
        self.ca_file = self.directory / "pki" / "ca.crt"
        self.url = ""
        self.token = ""
        self.borrowed = False
        self._quiet = quiet
        self._processes: list[LocalProcess] = []
        self._commands: dict[str, list[str | Path]] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start both processes and return when the API server is ready."""
        if os.environ.get("LORAFLEET_USE_KUBECONFIG") == "1":
            self._borrow()
            return
        if (self.directory / "cluster.json").exists():
            raise ClusterFailed(f"{self.directory} holds a cluster: take it down first")
        self.directory.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._start_once()
            except ProcessFailed as failure:
                self.stop()
                if attempt == ATTEMPTS:
                    raise ClusterFailed(str(failure)) from failure
                self._say(f"starting again: {failure}")
            except BaseException:
                self.stop()
                raise
            else:
                return

    def stop(self) -> None:
        """Stop what `start` started. May be called twice."""
        while self._processes:
            self._processes.pop().stop()
        (self.directory / "cluster.json").unlink(missing_ok=True)

    def kill(self, name: str) -> None:
        """`kill -9` of "etcd" or "kube-apiserver", as a crash would."""
        self._process(name).kill()

    def start_again(self, name: str) -> None:
        """Start one that was killed, with its address and data, and return when both are ready.

        Of two that were killed etcd has to be the first.
        """
        ended = self._process(name)
        process = LocalProcess.start(name, self._commands[name], ended.log)
        self._processes[self._processes.index(ended)] = process
        server = self._process("kube-apiserver")
        if server.running:
            server.wait_until(self._ready, START_SECONDS)

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Stop "etcd" or "kube-apiserver" for the block: connections stay, and nobody answers."""
        process = self._process(name)
        process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)

    def _process(self, name: str) -> LocalProcess:
        return next(each for each in self._processes if each.name == name)

    def _borrow(self) -> None:
        given = os.environ.get("KUBECONFIG", "")
        if not Path(given).is_file():
            raise ClusterFailed(f"KUBECONFIG is {given!r}, expected a file")
        self.kubeconfig = Path(given).resolve()
        self.borrowed = True

    def _start_once(self) -> None:
        began = time.monotonic()
        data, logs, pki = (self.directory / name for name in ("etcd", "logs", "pki"))
        shutil.rmtree(data, ignore_errors=True)  # a cluster always starts empty
        write_pki(pki)
        etcd_port, peer_port, port = free_port(), free_port(), free_port()
        etcd_url, peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
        self._say("starting etcd")
        self._commands = {"etcd": _etcd_command(data, etcd_url, peer_url)}
        etcd = LocalProcess.start("etcd", self._commands["etcd"], logs / "etcd.log")
        self._processes.append(etcd)
        etcd.wait_until(lambda: listens("127.0.0.1", etcd_port), START_SECONDS)

        self.url = f"https://127.0.0.1:{port}"
        self.token = secrets.token_hex(16)
        tokens = self.directory / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        self._say("starting kube-apiserver")
        command = _server_command(etcd_url, port, pki, tokens)
        self._commands["kube-apiserver"] = command
        server = LocalProcess.start("kube-apiserver", command, logs / "kube-apiserver.log")
        self._processes.append(server)
        server.wait_until(self._ready, START_SECONDS)
        self._write_kubeconfig()
        (self.directory / "cluster.json").write_text(
            json.dumps({process.name: process.pid for process in self._processes})
        )
        self._say(f"ready after {time.monotonic() - began:.1f} s")

    def _ready(self) -> bool:
        request = urllib.request.Request(
            f"{self.url}/readyz", headers={"Authorization": f"Bearer {self.token}"}
        )
        context = ssl.create_default_context(cafile=str(self.ca_file))
        with (
            contextlib.suppress(OSError),  # urllib's errors are OSErrors
            urllib.request.urlopen(request, timeout=5, context=context) as answer,
        ):
            return bool(answer.status == 200)
        return False

    def _write_kubeconfig(self) -> None:
        authority = base64.b64encode(self.ca_file.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "local",
                    "cluster": {"server": self.url, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [
                {
                    "name": "local",
                    "context": {"cluster": "local", "user": "admin", "namespace": "default"},
                }
            ],
            "current-context": "local",
        }
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config, indent=1))  # JSON is YAML

    def _say(self, line: str) -> None:
        if not self._quiet:
            print(f"[cluster] {line}", file=sys.stderr, flush=True)


def _etcd_command(data: Path, url: str, peer_url: str) -> list[str | Path]:
    return [
        find_binary("etcd"),
        "--name=local",
        f"--data-dir={data}",
        "--unsafe-no-fsync",  # nothing here outlives the process
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster=local={peer_url}",
        "--log-level=warn",
    ]


def _server_command(etcd_url: str, port: int, pki: Path, tokens: Path) -> list[str | Path]:
    return [
        find_binary("kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--token-auth-file={tokens}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'sa.pub'}",
        f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--endpoint-reconciler-type=none",
        # Nobody makes a service account for each namespace here.
        "--disable-admission-plugins=ServiceAccount",
        "--profiling=false",
    ]


def take_down(directory: Path) -> int:
    """Stop the processes that `up` left for `directory`; return how many were running."""
    record = directory.resolve() / "cluster.json"
    if not record.exists():
        return 0
    running = [
        pid for pid in reversed(json.loads(record.read_text()).values()) if _is_ours(pid, directory)
    ]
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 15
        while _is_ours(pid, directory):
            if time.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
    record.unlink()
    return len(running)


def _is_ours(pid: int, directory: Path) -> bool:
    """Whether `pid` is alive and was started for `directory`: pids are used again."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return str(directory.resolve()).encode() in command


def main() -> int:
    """Run `up DIR` or `down DIR`."""
    parser = argparse.ArgumentParser(description="a local Kubernetes API server")
    parser.add_argument("verb", choices=["up", "down"])
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "down":
        print(f"stopped {take_down(arguments.directory)} processes")
        return 0
    cluster = LocalCluster(arguments.directory)
    try:
        cluster.start()
    except ClusterFailed as failure:
        print(f"cluster: {failure}", file=sys.stderr)
        return 1
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
