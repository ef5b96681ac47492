"""Commands of the control plane: etcd, API server, controllers, scheduler, names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubelets.binaries import find
from kubelets.layout import API_PORT, DIRECTORY, MACHINE, SERVICES

if TYPE_CHECKING:
    from pathlib import Path

    Command = list[str | Path]

PKI = DIRECTORY / "pki"
ETCD = f"http://127.0.0.1:{API_PORT - 10}"
_ETCD_PEER = f"http://127.0.0.1:{API_PORT - 9}"
# Many small objects at once, as the API server of a test sees them: the defaults are 20 and 50.
_QUICK = ("--kube-api-qps=300", "--kube-api-burst=600", "--leader-elect=false")


def etcd() -> Command:
    """Its data lie in the cluster's folder and are not flushed to the disk."""
    return [
        find("etcd"),
        "--name=nodes",
        f"--data-dir={DIRECTORY / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={_ETCD_PEER}",
        f"--initial-advertise-peer-urls={_ETCD_PEER}",
        f"--initial-cluster=nodes={_ETCD_PEER}",
        "--log-level=warn",
    ]


def api_server() -> Command:
    """With the authorizers and the admission that a real cluster has."""
    return [
        find("kube-apiserver"),
        f"--etcd-servers={ETCD}",
        f"--bind-address={MACHINE}",
        f"--advertise-address={MACHINE}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={PKI / 'server.crt'}",
        f"--tls-private-key-file={PKI / 'server.key'}",
        f"--client-ca-file={PKI / 'ca.crt'}",
        f"--kubelet-client-certificate={PKI / 'kubelet-client.crt'}",
        f"--kubelet-client-key={PKI / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--token-auth-file={DIRECTORY / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={PKI / 'sa.pub'}",
        f"--service-account-signing-key-file={PKI / 'sa.key'}",
        f"--service-cluster-ip-range={SERVICES}",
        "--profiling=false",
    ]


def controllers() -> Command:
    """All of them, each with its own service account's rights."""
    return [
        find("kube-controller-manager"),
        f"--kubeconfig={DIRECTORY / 'controllers.kubeconfig'}",
        f"--service-account-private-key-file={PKI / 'sa.key'}",
        f"--root-ca-file={PKI / 'ca.crt'}",
        "--use-service-account-credentials=true",
        "--allocate-node-cidrs=false",
        "--bind-address=127.0.0.1",
        *_QUICK,
    ]


def scheduler() -> Command:
    """The ordinary one."""
    config = DIRECTORY / "scheduler.kubeconfig"
    return [find("kube-scheduler"), f"--kubeconfig={config}", "--bind-address=127.0.0.1", *_QUICK]


def name_server() -> Command:
    """CoreDNS on the machine's address."""
    return [find("coredns"), "-conf", DIRECTORY / "Corefile"]
