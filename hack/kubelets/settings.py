"""The configuration files of a node's three programs and of the name server: pure text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kubelets.layout import DIRECTORY, DOMAIN, MACHINE, PACKAGES, PAUSE_IMAGE, PODS

if TYPE_CHECKING:
    from pathlib import Path

    from kubelets.layout import Node

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""In the node's own /run."""


def containerd(node: Node) -> str:
    """The container runtime's, of version 1.6 (Debian 12)."""
    root = node.directory / "containerd"
    return f"""version = 2
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  # Without CAP_SYS_RESOURCE a negative score of the kernel's out-of-memory killer is refused.
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{PACKAGES}/usr/lib/cni"
    conf_dir = "{node.directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def pod_network(node: Node) -> str:
    """A bridge in the node; its routes lead to the other node and to the machine. No masquerade."""
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": node.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/ipam",
        },
    }
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]})


def kubelet(node: Node) -> str:
    """The kubelet's, which reads JSON too."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # From 1.35 on a kubelet refuses control groups of version 1 unless told.
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{node.cgroup}",
            "enforceNodeAllocatable": ["pods"],
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "address": node.address,
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(DIRECTORY / "pki" / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "clusterDomain": DOMAIN,
            "clusterDNS": [MACHINE],
            "resolvConf": str(node.directory / "resolv.conf"),
            # The image store is the build's: nothing is to be cleaned up or evicted for space.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "0%",
            },
            "podLogsDir": str(node.directory / "podlogs"),
            # Pods of a test end at once when told, and are seen at once.
            "nodeStatusUpdateFrequency": "5s",
            "registerWithTaints": [],
        }
    )


def kube_proxy(node: Node) -> str:
    """kube-proxy's; connection tracking's limits belong to the machine, not to a namespace."""
    untouched = {
        "maxPerCore": 0,
        "min": 0,
        "tcpEstablishedTimeout": "0s",
        "tcpCloseWaitTimeout": "0s",
    }
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(node.directory / "proxy.kubeconfig")},
            "hostnameOverride": node.name,
            "clusterCIDR": PODS,
            "conntrack": untouched,
        }
    )


def name_server(kubeconfig: Path) -> str:
    """CoreDNS's; names outside the cluster are not known."""
    return f""".:53 {{
  bind {MACHINE}
  errors
  kubernetes {DOMAIN} in-addr.arpa {{
    kubeconfig {kubeconfig}
  }}
}}
"""


def kubeconfig(server: str, authority: str, token: str) -> str:
    """A client's, for the user of `token`; `authority` is base64 of the CA's certificate."""
    cluster: dict[str, Any] = {"server": server, "certificate-authority-data": authority}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "nodes", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "nodes", "context": {"cluster": "nodes", "user": "user"}}],
            "current-context": "nodes",
        },
        indent=1,
    )
