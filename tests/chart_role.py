"""The rights that the chart gives the operator in one namespace, and an account that has them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from kube_rest import KubeRest

CHART = Path(__file__).resolve().parents[1] / "charts" / "lorafleet"
_RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/{}"


RELEASE = "lorafleet"
SHARDS = 2
_EACH_SHARD = r"{{ range .*? }}{{ \$\.Release\.Name }}-{{ \$shard }}, {{ end }}"


def rules(name: str = "rules") -> list[dict[str, Any]]:
    """The rules of the template: `rules` where it serves, `leases` in its own namespace."""
    text = (CHART / "templates" / "_names.tpl").read_text()
    shards = ", ".join(f"{RELEASE}-{shard}" for shard in range(SHARDS))
    text, replaced = re.subn(_EACH_SHARD, shards, text)
    assert replaced == 1
    found = re.search(
        rf'define "lorafleet\.{name}" -}}}}\n(.*?){{{{- end }}}}', text, flags=re.DOTALL
    )
    assert found
    parsed: list[dict[str, Any]] = yaml.safe_load(found[1])
    return parsed


def token(kube: KubeRest, namespace: str) -> str:
    """Make the account `operator` with these rights in the namespace; return a token of it."""
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    name = {"metadata": {"name": "operator"}}
    kube.create(accounts, name)
    kube.create(_RBAC.format(namespace, "roles"), {**name, "rules": [*rules(), *rules("leases")]})
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
