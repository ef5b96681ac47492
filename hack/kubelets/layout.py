"""Names, addresses and files of the cluster: one a machine, since control groups have one name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CACHE = REPOSITORY / ".cache"
DIRECTORY = CACHE / "nodes"
"""State, keys and logs; `kubeconfig` in it is an administrator's."""
PACKAGES = CACHE / "debian"
"""Where hack/build-binaries unpacks Debian's packages."""

BRIDGE = "lorafleet0"
MACHINE = "10.99.0.254"
API_PORT = 6443
SERVICES = "10.96.0.0/24"
FIRST_SERVICE = "10.96.0.1"
PODS = "10.88.0.0/16"
DOMAIN = "cluster.local"
CGROUP_PREFIX = "lorafleet-"
SHARED = Path("/srv")
"""Where nodes see folders of the machine, read-only."""
PAUSE_IMAGE = "localhost/pause:1"


@dataclass(frozen=True)
class Node:
    """One node: its name and what follows from its number, from 1 on."""

    number: int

    @property
    def name(self) -> str:
        """`n1`, `n2`."""
        return f"n{self.number}"

    @property
    def address(self) -> str:
        """On the bridge."""
        return f"10.99.0.{self.number}"

    @property
    def pods(self) -> str:
        """The network of its pods."""
        return f"10.88.{self.number}.0/24"

    @property
    def cgroup(self) -> str:
        """The control group under which the kubelet puts its pods, from each hierarchy's root."""
        return f"{CGROUP_PREFIX}{self.name}"

    @property
    def directory(self) -> Path:
        """Its containers, volumes and configuration."""
        return DIRECTORY / self.name

    @property
    def link(self) -> str:
        """The machine's end of its cable."""
        return f"lorafleet-{self.name}"


NODES = (Node(1), Node(2))
