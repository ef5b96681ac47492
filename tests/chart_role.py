"""The rights that the chart gives the operator in one namespace, and an account that has them."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from helm import rendered

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest

_RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/{}"
RELEASE = "lorafleet"
SHARDS = 2


@cache
def rules(name: str = RELEASE) -> tuple[dict[str, Any], ...]:
    """The rules of a Role of the chart: of RELEASE where it serves, of `-leases` in its own namespace."""
    made = rendered("namespaces={served}", f"shards={SHARDS}", "tls.mode=none", release=RELEASE)
    (role,) = (each for each in made if (each["kind"], each["metadata"]["name"]) == ("Role", name))
    return tuple(role["rules"])


def token(kube: KubeRest, namespace: str) -> str:
    """Make the account `operator` with these rights in the namespace; return a token of it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    name = {"metadata": {"name": "operator"}}
    kube.create(accounts, name)
    kube.create(
        _RBAC.format(namespace, "roles"), {**name, "rules": [*rules(), *rules(f"{RELEASE}-leases")]}
    )
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"}
    account = {"kind": "ServiceAccount", "name": "operator", "namespace": namespace}
    kube.create(
        _RBAC.format(namespace, "rolebindings"), {**name, "roleRef": role, "subjects": [account]}
    )
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = kube.create(f"{accounts}/operator/token", request)
    return str(answer["status"]["token"])


def kubeconfig(administrator: Path, target: Path, user_token: str) -> Path:
    """Write a kubeconfig for the cluster of another one, with the token's rights."""
    config = json.loads(administrator.read_text())
    for user in config["users"]:
        user["user"] = {"token": user_token}
    target.touch(mode=0o600)
    target.write_text(json.dumps(config))
    return target
