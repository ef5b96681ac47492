"""What the operator's account may do, as `kubectl auth can-i --list` tells: the list that was reviewed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from chart_sets import GOLDEN, NAMESPACES, SYSTEM, assert_golden
from helm import CHART, given, helm
from localcluster import find_binary

if TYPE_CHECKING:
    from kube_rest import KubeRest
    from localcluster import LocalCluster

PUSH = ("push.enabled=true", "push.tls.secret=push")
MODES = {
    "cluster": (),
    "namespaced": ("namespaces={team-a}",),
    "push": ("namespaces={team-a}", *PUSH),
    "cluster-push": PUSH,
}
ELSEWHERE = "team-b"


def may(cluster: LocalCluster, account: str, namespace: str) -> str:
    command = [find_binary("kubectl"), "--kubeconfig", cluster.kubeconfig, "auth", "can-i"]
    command += ["--list", "--as", account, "--as-group", "system:serviceaccounts"]
    command += ["--as-group", "system:authenticated", "-n", namespace]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    head, *lines = ended.stdout.splitlines()
    return "\n".join([head, *sorted(lines)]) + "\n"


@pytest.mark.parametrize("mode", MODES)
def test_every_account_may_do_what_the_reviewed_list_says_and_no_more(
    mode: str, bare: LocalCluster, bare_kube: KubeRest
) -> None:
    for name in NAMESPACES:
        bare_kube.client.post("/api/v1/namespaces", json={"metadata": {"name": name}})
    values = ("injection.enabled=false", "crds.enabled=false", "tls.mode=none", *MODES[mode])
    place = (mode, "-n", SYSTEM)
    helm("install", place[0], CHART, *place[1:], *given(values), kubeconfig=bare.kubeconfig)
    try:
        text = helm("get", "manifest", *place, kubeconfig=bare.kubeconfig)
        made = [each for each in yaml.safe_load_all(text) if each]
        accounts = [each for each in made if each["kind"] == "ServiceAccount"]
        assert [each["metadata"]["name"] for each in accounts] == [mode]
        account = f"system:serviceaccount:{SYSTEM}:{mode}"
        found = [f"# {each}\n{may(bare, account, each)}" for each in NAMESPACES]
    finally:
        helm("uninstall", *place, kubeconfig=bare.kubeconfig)
    assert_golden(GOLDEN / f"rights-{mode}.txt", "\n".join(found))
    if mode == "namespaced":
        stranger = may(bare, "system:serviceaccount:other:other", ELSEWHERE)
        assert found[-1] == f"# {ELSEWHERE}\n{stranger}", "elsewhere it may do what everybody may"
