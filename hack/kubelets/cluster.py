"""Starts the cluster, gives it images, and takes it down."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
from localpki import write_pki
from processes import LocalProcess

from kubelets import control, kernel, network, record, settings
from kubelets.binaries import NodesFailed, environment, find
from kubelets.layout import (
    API_PORT,
    CGROUP_PREFIX,
    DIRECTORY,
    FIRST_SERVICE,
    MACHINE,
    NODES,
    REPOSITORY,
    Node,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

KUBECONFIG = DIRECTORY / "kubeconfig"
_RECORD = DIRECTORY / "processes.json"
_SETTINGS = DIRECTORY / "sysctls.json"
_IMAGES = DIRECTORY / "images"
_SERVER = f"https://{MACHINE}:{API_PORT}"
_READY_SECONDS = 300.0
"""Two nodes on two idle cores take 20; images are unpacked meanwhile."""
_FIRST_SECONDS = 60.0
_USERS = {
    # file, user, groups
    "kubeconfig": ("admin", "system:masters"),
    "controllers.kubeconfig": ("system:kube-controller-manager", ""),
    "scheduler.kubeconfig": ("system:kube-scheduler", ""),
    **{
        f"{node.name}/kubelet.kubeconfig": (f"system:node:{node.name}", "system:nodes")
        for node in NODES
    },
    **{f"{node.name}/proxy.kubeconfig": ("system:kube-proxy", "") for node in NODES},
}


def refusal() -> str | None:
    """Why this machine cannot run it, in one line; None if it can, as far as one sees."""
    if os.geteuid() != 0:
        return "needs root: nodes are namespaces with containers in them"
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != "bookworm":
        return "needs Debian 12, whose packages are unpacked for the nodes and the images"
    for program in ("apt-get", "dpkg-deb", "ip", "nsenter", "unshare"):
        if shutil.which(program) is None:
            return f"needs {program}, which is not here"
    writable = [root for root in kernel.hierarchies() if os.access(root, os.W_OK)]
    if not writable:
        return f"needs control groups that it may write to at {kernel.CGROUPS}"
    probe = ["unshare", "--mount", "--net", "--pid", "--uts", "--fork", "true"]
    if (tried := subprocess.run(probe, capture_output=True, text=True)).returncode != 0:
        return f"needs namespaces, which cannot be made here: {tried.stderr.strip()}"
    return None


def up(images: Sequence[Path], shared: Mapping[str, Path] | None = None) -> None:
    """Start everything; return when both nodes are Ready. What fails is taken down again.

    Nodes see the folders `shared` under /srv by their names.
    """
    if reason := refusal():
        raise NodesFailed(reason)
    if network.exists():
        raise NodesFailed(
            "a cluster is up already on this machine: hack/nodes down, where it was started"
        )
    try:
        _start(images, shared or {})
    except BaseException:
        down(keep_logs=True)
        raise


def down(*, keep_logs: bool = False) -> None:
    """End what `up` started and put the machine back. Does nothing if nothing is up."""
    if not _RECORD.exists():
        return  # and leave alone what another checkout may have started
    for one in reversed(record.read(_RECORD)):
        one.kill()
    network.remove()
    kernel.remove_cgroups(CGROUP_PREFIX)
    kernel.restore_settings(_SETTINGS)
    for entry in DIRECTORY.iterdir() if DIRECTORY.exists() else ():
        if not (keep_logs and entry.name == "logs"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def load(archive: Path) -> None:
    """Give every node the image in `archive`."""
    for node in NODES:
        _enter(node, "images", "import", archive.resolve())


def adopt(process: record.Started) -> None:
    """Let `down` end this process too."""
    record.write(_RECORD, [*record.read(_RECORD), process])


def _enter(node: Node, *arguments: str | Path) -> None:
    """Run containerd's client in the node."""
    pid = psutil.Process(_of(node.name).pid).children()[0].pid
    command = ["nsenter", "--target", str(pid), "--mount", "--net", find("ctr"), "-n", "k8s.io"]
    done = subprocess.run([*command, *arguments], env=environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise NodesFailed(f"{node.name}: ctr {arguments[0]}: {done.stderr.strip()}")


def _of(name: str) -> record.Started:
    for one in record.read(_RECORD):
        if one.name == name and one.alive:
            return one
    raise NodesFailed(f"{name} is not up: hack/nodes up")


def _start(images: Sequence[Path], shared: Mapping[str, Path]) -> None:
    began = time.monotonic()
    for folder in ("logs", "images", *(node.name for node in NODES)):
        (DIRECTORY / folder).mkdir(parents=True, exist_ok=True)
    for archive in images:
        shutil.copy(archive, _IMAGES)
    found = {name: str(folder.resolve(strict=True)) for name, folder in shared.items()}
    (DIRECTORY / "shared.json").write_text(json.dumps(found))
    write_pki(DIRECTORY / "pki", addresses=(MACHINE, FIRST_SERVICE), kubelet_client=True)
    _write_users()
    (DIRECTORY / "Corefile").write_text(settings.name_server(KUBECONFIG))
    kernel.save_settings(_SETTINGS)
    record.write(_RECORD, [])
    network.lay()
    starts: list[record.Started] = []

    def start(name: str, command: Sequence[str | Path]) -> LocalProcess:
        process = LocalProcess.start(
            name, command, DIRECTORY / "logs" / f"{name}.log", environment()
        )
        starts.append(record.Started.of(name, process.pid))
        record.write(_RECORD, starts)
        return process

    start("etcd", control.etcd())
    server = start("kube-apiserver", control.api_server())
    server.wait_until(lambda: _kubectl("get", "--raw", "/readyz") == "ok", _READY_SECONDS)
    _say(f"the API server is ready after {time.monotonic() - began:.1f} s")
    controllers = start("kube-controller-manager", control.controllers())
    start("kube-scheduler", control.scheduler())
    start("coredns", control.name_server())
    nodes = {}
    for node in NODES:
        kernel.make_cgroups(node)
        nodes[node] = start(node.name, _namespaces(node))
        network.connect(node, _first_process(nodes[node]))
    for node, process in nodes.items():
        _await_node(node, process)
    account = ("get", "serviceaccount", "default", "-o", "name")
    controllers.wait_until(lambda: bool(_kubectl(*account)), _READY_SECONDS)
    _say(f"{len(NODES)} nodes are Ready after {time.monotonic() - began:.1f} s")


def _await_node(node: Node, process: LocalProcess) -> None:
    ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'

    def look() -> bool:
        return _kubectl("get", "node", node.name, "-o", ready) == "True"

    process.wait_until(look, _READY_SECONDS, "Ready")


def _namespaces(node: Node) -> list[str | Path]:
    kinds = ("--mount", "--net", "--pid", "--uts", "--mount-proc")
    module = [sys.executable, "-m", "kubelets.node", str(node.number)]
    hack = f"PYTHONPATH={REPOSITORY / 'hack'}"
    return ["unshare", *kinds, "--fork", "--kill-child", "env", hack, *module]


def _first_process(node: LocalProcess) -> int:
    """The first process of a node's namespaces, once it is there."""
    found: list[int] = []

    def look() -> bool:
        with contextlib.suppress(psutil.Error):
            found.extend(child.pid for child in psutil.Process(node.pid).children())
        return bool(found)

    node.wait_until(look, _FIRST_SECONDS, "in its namespaces")
    return found[0]


def _write_users() -> None:
    """A token and a kubeconfig for each user of the API."""
    authority = base64.b64encode((DIRECTORY / "pki" / "ca.crt").read_bytes()).decode()
    rows = []
    for file, (user, group) in _USERS.items():
        token = secrets.token_hex(16)
        rows.append(f'{token},{user},{user},"{group}"')
        path = DIRECTORY / file
        path.touch(mode=0o600)
        path.write_text(settings.kubeconfig(_SERVER, authority, token))
    tokens = DIRECTORY / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text("\n".join(rows) + "\n")


def _kubectl(*arguments: str) -> str:
    """What kubectl prints; nothing when it fails."""
    command = [find("kubectl"), f"--kubeconfig={KUBECONFIG}", "--request-timeout=5s", *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout


def _say(line: str) -> None:
    print(f"[nodes] {line}", file=sys.stderr, flush=True)
