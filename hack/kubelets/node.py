"""The first process of a node's namespaces: `python -m kubelets.node NUMBER`.

It prepares the mounts and the network, starts containerd, the kubelet and kube-proxy, gives
containerd the images that lie in the cluster's folder and adopts what containers leave behind. When
one of the three ends, it ends, and the kernel ends everything else in the node.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kubelets import settings
from kubelets.binaries import environment, find
from kubelets.layout import DIRECTORY, MACHINE, NODES, SHARED, Node

if TYPE_CHECKING:
    from collections.abc import Sequence

CABLE = "eth0"
_CABLE_SECONDS = 60.0
_CONTAINERD_SECONDS = 120.0


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, env=environment())


def _private_mounts(node: Node) -> None:
    """Mounts that the machine does not see: a /run with nothing of the machine's, what it shares."""
    _run("mount", "--make-rprivate", "/")
    # The kubelet's volumes must be seen by containers started later.
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "lorafleet-run", "/run")
    for folder in ("/run/containerd", "/run/netns", "/run/ipam"):
        Path(folder).mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "lorafleet-srv", SHARED)
    for name, source in json.loads((DIRECTORY / "shared.json").read_text()).items():
        target = SHARED / name
        target.mkdir()
        _run("mount", "--bind", source, target)
        _run("mount", "-o", "remount,bind,ro", target)
    socket.sethostname(node.name)


def _network(node: Node) -> None:
    """The cable to the bridge, once it is there, and routes to the other nodes' pods."""
    deadline = time.monotonic() + _CABLE_SECONDS
    while CABLE not in {name for _, name in socket.if_nameindex()}:
        if time.monotonic() > deadline:
            raise SystemExit(f"{node.name}: no {CABLE} after {_CABLE_SECONDS:.0f} s")
        time.sleep(0.05)
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "addr", "add", f"{node.address}/24", "dev", CABLE)
    _run("ip", "link", "set", CABLE, "up")
    _run("ip", "route", "add", "default", "via", MACHINE)
    for other in NODES:
        if other != node:
            _run("ip", "route", "add", other.pods, "via", other.address)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _write_settings(node: Node) -> None:
    (node.directory / "cni").mkdir(parents=True, exist_ok=True)
    (node.directory / "containerd.toml").write_text(settings.containerd(node))
    (node.directory / "cni" / "10-pods.conflist").write_text(settings.pod_network(node))
    (node.directory / "kubelet.json").write_text(settings.kubelet(node))
    (node.directory / "proxy.json").write_text(settings.kube_proxy(node))
    (node.directory / "resolv.conf").write_text(f"nameserver {MACHINE}\n")


def _start(node: Node, name: str, command: Sequence[str | Path]) -> int:
    log = DIRECTORY / "logs" / f"{name}-{node.name}.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment(),
        )
    return process.pid


def _containerd(node: Node) -> int:
    """Start the container runtime and wait until it answers."""
    binary = find("containerd")
    pid = _start(node, "containerd", [binary, "-c", node.directory / "containerd.toml"])
    deadline = time.monotonic() + _CONTAINERD_SECONDS
    version = [find("ctr"), "version"]
    while subprocess.run(version, capture_output=True, env=environment()).returncode != 0:
        if time.monotonic() > deadline:
            raise SystemExit(f"{node.name}: containerd does not answer")
        time.sleep(0.1)
    return pid


def import_image(archive: Path) -> None:
    """Give the node's containerd an image; called in the node's namespaces."""
    _run(find("ctr"), "--namespace", "k8s.io", "images", "import", archive)


def main(number: int) -> int:
    """Run the node until one of its programs ends."""
    node = next(node for node in NODES if node.number == number)
    _private_mounts(node)
    _network(node)
    _write_settings(node)
    watched = {_containerd(node): "containerd"}
    for archive in sorted((DIRECTORY / "images").glob("*.tar")):
        import_image(archive)
    kubelet = [
        find("kubelet"),
        f"--config={node.directory / 'kubelet.json'}",
        f"--kubeconfig={node.directory / 'kubelet.kubeconfig'}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.directory / 'kubelet'}",
        f"--cert-dir={node.directory / 'kubelet' / 'pki'}",
    ]
    watched[_start(node, "kubelet", kubelet)] = "kubelet"
    proxy = [find("kube-proxy"), f"--config={node.directory / 'proxy.json'}"]
    watched[_start(node, "kube-proxy", proxy)] = "kube-proxy"
    while True:
        pid, status = os.wait()
        if pid in watched:
            code = os.waitstatus_to_exitcode(status)
            print(f"{node.name}: {watched[pid]} ended with {code}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
