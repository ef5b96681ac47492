"""The bridge between the machine and its nodes, and the routes to pods and services."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from kubelets.binaries import environment
from kubelets.layout import BRIDGE, MACHINE, NODES, SERVICES
from kubelets.node import CABLE

if TYPE_CHECKING:
    from kubelets.layout import Node


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, env=environment())


def exists() -> bool:
    """Whether the bridge is there: a cluster is up, or one was not taken down."""
    return subprocess.run(["ip", "link", "show", BRIDGE], capture_output=True).returncode == 0


def lay() -> None:
    """Make the bridge with the machine's address."""
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("addr", "add", f"{MACHINE}/24", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")


def connect(node: Node, pid: int) -> None:
    """Lay the cable between the bridge and the namespace of process `pid`, and the routes to it."""
    _ip("link", "add", node.link, "type", "veth", "peer", "name", CABLE, "netns", str(pid))
    _ip("link", "set", node.link, "master", BRIDGE, "up")
    _ip("route", "replace", node.pods, "via", node.address)
    if node == NODES[0]:
        _ip("route", "replace", SERVICES, "via", node.address)


def remove() -> None:
    """Remove the bridge; cables went with their nodes, routes go with the bridge."""
    for name in [*(node.link for node in NODES), BRIDGE]:
        subprocess.run(["ip", "link", "del", name], capture_output=True)
