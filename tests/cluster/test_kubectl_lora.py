"""`kubectl lora` through the real kubectl against a real API server: what each command prints."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import jsonschema
import kubectl_schema
import pytest
import yaml
from broken_kubeconfigs import SILENT, UNREADABLE
from kubectl_lora import KubectlLora
from lorafleet_operator.kubectl import lookup, rollback
from lorafleet_operator.kubectl.api import Failed, Kubectl
from resource_builders import adapter, path, pool

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

A, B, C = ("sha256:" + each * 32 for each in ("0a", "0b", "0c"))
ESCAPES = "no room \x1b[2J\x1b]0;owned\x07 \u202eleft \x9b31m"
SHOWN = r"no room \x1b[2J\x1b]0;owned\x07 \u202eleft \x9b31m"
SINCE = "2026-01-01T00:00:00Z"


@pytest.fixture
def lora(cluster: LocalCluster, tmp_path: Path, namespace: str) -> KubectlLora:
    """The plugin, whose context's namespace is the test's own."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    return KubectlLora(tmp_path, tmp_path / "kubeconfig")


def condition(status: str, reason: str, message: str) -> list[dict[str, Any]]:
    found = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return [{**found, "lastTransitionTime": SINCE, "observedGeneration": 1}]


@pytest.fixture
def fleet(kube: KubeRest, namespace: str) -> str:
    """A pool of two engines; sql is served, chat has no room, new was not looked at yet."""
    kube.create(path("EnginePool", namespace), pool())
    engine = {"health": "Ready", "traffic": "Warm", "loaded": 1, "maxLoras": 2, "loads": 7}
    engine |= {"arenaLimitBytes": 64 << 20, "arenaUsedBytes": 6 << 20, "maxLoraRank": 64}
    lost = {**engine, "podName": "engine-1", "health": "Unreachable", "message": "gone \x1b[31m"}
    grown = {"hostGrowthPerLoad": 3 << 19, "recycleDue": "7 loads are more than 6"}
    engines = [{**engine, **grown, "podName": "engine-0"}, lost]
    kube.merge(
        path("EnginePool", namespace, "main", "status"),
        {"status": {"totalEngines": 2, "engines": engines}},
    )
    for name in ("chat", "new", "sql"):
        body = adapter(name)
        body["metadata"]["labels"] = {"team": name}
        kube.create(path("LoRAAdapter", namespace), body)
    serving = {"digest": A, "tier": "gpu", "published": True, "lastTransitionTime": SINCE}
    status = {
        "observedGeneration": 1,
        "digest": A,
        "sizeBytes": 2 << 20,
        "rank": 16,
        "desiredEngines": 2,
        "readyEngines": 2,
        "tierSummary": "gpu",
        "history": [B, C],
        "stable": {"digest": A, "fingerprint": "x"},
        "engines": [{**serving, "podName": f"engine-{n}", "inFlight": 2 * n} for n in range(2)],
        "conditions": condition("True", "Ready", "all is well"),
    }
    kube.merge(path("LoRAAdapter", namespace, "sql", "status"), {"status": status})
    blocked = {"observedGeneration": 1, "conditions": condition("False", "NoCapacity", ESCAPES)}
    kube.merge(path("LoRAAdapter", namespace, "chat", "status"), {"status": blocked})
    return namespace


def without_ages(text: str) -> list[str]:
    return [re.sub(r"\d+[smhd]( ago)?$", "AGE", line) for line in text.splitlines()]


def test_the_list_is_as_kubectl_gets_it_and_with_revisions(lora: KubectlLora, fleet: str) -> None:
    assert without_ages(lora.run("ls").out) == [
        "NAME  BASE MODEL        ENGINES  READY  REASON       TIER  REVISION      AGE",
        "chat  tiny/qwen3-dense  0/0      False  NoCapacity   -     -             AGE",
        "new   tiny/qwen3-dense  -        -      NotLookedAt  -     -             AGE",
        "sql   tiny/qwen3-dense  2/2      True   Ready        gpu   0a0a0a0a0a0a  AGE",
    ]
    assert lora.run("ls", "-l", "team=sql", "-o", "name").out == "loraadapter.lorafleet.dev/sql\n"
    assert lora.run("ls", "--pool", "main", "--no-headers").out.count("\n") == 3
    none = lora.run("ls", "--pool", "other")
    assert (none.status, none.out, none.err) == (0, "", f"no adapters found in namespace {fleet}\n")


def test_no_escape_of_a_status_reaches_the_terminal(lora: KubectlLora, fleet: str) -> None:
    for command in (["ls", "-o", "wide"], ["why", "chat"], ["top", "--once"]):
        shown = lora.run(*command)
        assert shown.status == 0, shown.err
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown.out)
    wide = lora.run("ls", "-o", "wide").out
    assert SHOWN in wide
    assert f"{fleet}/main  {fleet}/sql" in wide
    for output, load in (("json", json.loads), ("yaml", yaml.safe_load)):
        told = lora.run("ls", "-o", output).out
        assert "\x1b" not in told
        assert load(told)["adapters"][0]["message"] == ESCAPES


def test_programs_get_documents_of_the_schema(lora: KubectlLora, fleet: str) -> None:
    schema = kubectl_schema.schema()
    for command in (
        ["ls"],
        ["ls", "-A"],
        ["ls", "--pool", "none"],
        ["top"],
        ["history", "sql"],
        ["rollback", "sql", "--dry-run"],
    ):
        found = json.loads(lora.run(*command, "-o", "json").out)
        jsonschema.validate(found, schema)
    told = json.loads(lora.run("ls", "-o", "json").out)
    assert [each["name"] for each in told["adapters"]] == ["chat", "new", "sql"]
    for command in (["ls"], ["history", "sql"], ["ls", "--pool", "none"]):
        told = json.loads(lora.run(*command, "-o", "json").out)
        assert yaml.safe_load(lora.run(*command, "-o", "yaml").out) == told


def test_the_history_says_what_is_current_staged_and_who_asked(
    lora: KubectlLora, fleet: str
) -> None:
    assert re.sub(r"\d+d ago", "AGE", lora.run("history", "sql").out).splitlines() == [
        f"LoRAAdapter {fleet}/sql follows its source",
        "",
        "REVISION      STATE    ENGINES  STAGED  IN FLIGHT  SINCE     ASKED BY      MESSAGE",
        "0a0a0a0a0a0a  current  2        yes     2          AGE  python-httpx  -",
        "0b0b0b0b0b0b  earlier  0        yes     -          -         -             -",
        "0c0c0c0c0c0c  earlier  0        yes     -          -         -             -",
    ]
    assert lora.run("history", "sql", "-o", "name").out.split() == [A, B, C]
    assert "no revision is known yet" in lora.run("history", "new").out


def test_top_tells_of_engines_and_adapters_and_what_was_left_out(
    lora: KubectlLora, fleet: str
) -> None:
    lines = lora.run("top", "--once").out.splitlines()
    assert lines[0] == "2 engines, 1 of 3 adapters ready"
    width = len(fleet)
    assert lines[2:5] == [
        f"ENGINE{' ' * (width + 5)}POOL  HEALTH       TRAFFIC  LOADED  SLOTS  STAGED        PINNED  LOADS  GROWTH  EVICTED  IN FLIGHT  MESSAGE",
        f"{fleet}/engine-0  main  Ready        Warm     1       -/2    6.0Mi/64.0Mi  -       7      1.5Mi   -        -          to be recycled: 7 loads are more than 6",
        f"{fleet}/engine-1  main  Unreachable  Warm     1       -/2    6.0Mi/64.0Mi  -       7      -       -        -          gone \\x1b[31m",
    ]
    assert lines[7].split() == f"{fleet}/sql True 2/2 2 0 0 2.0Mi 2 0a0a0a0a0a0a Ready".split()
    note = 'note: no live figures of engines (2 of 2 engines): pods "engine-0" not found'
    assert lines[-1] == note
    assert lora.run("top", "--no-live").out.splitlines() == lines[:-1]


def test_a_rollback_writes_one_field_of_the_version_that_was_read(
    lora: KubectlLora, fleet: str, kube: KubeRest
) -> None:
    before = kube.get(path("LoRAAdapter", fleet, "sql"))
    dry = lora.run("rollback", "sql", "--dry-run")
    assert dry.out == f"{fleet}/sql is to serve revision 0b0b0b0b0b0b (dry run)\n"
    assert kube.get(path("LoRAAdapter", fleet, "sql")) == before
    assert lora.run("rollback", "sql", "--to", "0c0c0c", "--no-wait").status == 0
    after = kube.get(path("LoRAAdapter", fleet, "sql"))
    assert after["spec"] == {**before["spec"], "revision": C}
    assert after["status"] == before["status"]
    history = json.loads(lora.run("history", "sql", "-o", "json").out)
    assert history["pinnedRevision"] == C
    assert history["revisions"][0]["askedBy"] == "kubectl-lora"
    assert "kept at 0c0c0c0c0c0c by spec.revision" in lora.run("history", "sql").out
    assert lora.run("rollback", "sql", "--to", "source", "--no-wait").status == 0
    assert kube.get(path("LoRAAdapter", fleet, "sql"))["spec"] == before["spec"]


def test_a_change_that_somebody_makes_meanwhile_is_not_overwritten(
    lora: KubectlLora, fleet: str, kube: KubeRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", lora.environment["PATH"])
    kubectl = Kubectl([f"--kubeconfig={lora.environment['KUBECONFIG']}"])
    read = lookup.adapter(kubectl, fleet, "sql")
    kube.merge(path("LoRAAdapter", fleet, "sql"), {"spec": {"priority": 7}})
    with pytest.raises(Failed, match="somebody else changed the adapter meanwhile") as refused:
        rollback.write(kubectl, read, B, dry_run=False)
    assert refused.value.reason == "Conflict"
    spec = kube.get(path("LoRAAdapter", fleet, "sql"))["spec"]
    assert (spec["priority"], "revision" in spec) == (7, False)


def test_a_rollback_that_nobody_carries_out_says_what_keeps_it(
    lora: KubectlLora, fleet: str
) -> None:
    kept = lora.run("rollback", "sql", "--timeout", "1")
    assert kept.status == 1
    assert kept.out.splitlines() == [
        f"{fleet}/sql is to serve revision 0b0b0b0b0b0b",
        "0/2 the operator has not looked at it yet",
    ]
    assert kept.err == (
        f"kubectl lora: {fleet}/sql does not serve revision 0b0b0b0b0b0b: "
        "the operator has not looked at it yet\n"
    )


def test_what_is_not_there_is_told_with_names_that_are_near(lora: KubectlLora, fleet: str) -> None:
    for verb in ("why", "history", "rollback"):
        ran = lora.run(verb, "sqll")
        assert (ran.status, ran.out) == (1, "")
        told = f"kubectl lora: LoRAAdapter {fleet}/sqll does not exist; did you mean sql?\n"
        assert ran.err == told
    assert "is no name of a LoRAAdapter" in lora.run("why", "a/b").err
    ran = lora.run("why", "sql", "-n", "elsewhere")
    assert ran.err == (
        "kubectl lora: LoRAAdapter elsewhere/sql does not exist: the namespace has no adapters\n"
    )
    assert lora.run("-n", fleet, "ls", "-o", "name", "-n", "elsewhere").out == ""
    assert len(lora.run("-n", fleet, "ls", "-o", "name").out.split()) == 3


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_broken_kubeconfig_is_one_line(case: str, lora: KubectlLora, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(UNREADABLE[case])
    ran = lora.run("ls", "--kubeconfig", str(tmp_path / "broken"))
    assert (ran.status, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("kubectl lora: ")


def test_no_cluster_is_one_line_that_says_which(lora: KubectlLora, tmp_path: Path) -> None:
    said = lora.run("ls", KUBECONFIG=str(tmp_path / "none")).err
    assert said == (
        "kubectl lora: no kubeconfig names a cluster: give --kubeconfig or set KUBECONFIG\n"
    )
    assert lora.run("ls", "--context", "nope").err.count("nope") == 1
    said = lora.run("ls", "--kubeconfig", str(tmp_path / "none")).err
    assert said == f"kubectl lora: stat {tmp_path}/none: no such file or directory\n"
    (tmp_path / "silent").write_text(json.dumps(SILENT))
    said = lora.run("ls", "--kubeconfig", str(tmp_path / "silent")).err
    assert "the kubeconfig's user has no credentials" in said
    users = [{"name": "x", "user": {"token": "x"}}]
    (tmp_path / "silent").write_text(json.dumps({**SILENT, "users": users}))
    said = lora.run("ls", "--kubeconfig", str(tmp_path / "silent")).err
    assert said.startswith("kubectl lora: the API server does not answer: ")
    with socket.create_server(("127.0.0.1", 0)) as listening:  # which accepts, and says nothing
        server = f"http://127.0.0.1:{listening.getsockname()[1]}"
        silent = lora.run("ls", "--server", server, "--request-timeout", "1s")
    assert (silent.status, silent.err.count("\n")) == (1, 1)
    assert "the API server does not answer: " in silent.err
    (lora.folder / "kubectl").unlink()
    alone = lora.run("ls", program="kubectl-lora", PATH=str(lora.folder))
    assert alone.err == "kubectl lora: kubectl is not on the PATH\n"


@pytest.mark.parametrize(
    "arguments", [["--nonsense"], ["ls", "-o", "xml"], ["why"], ["top", "--interval", "0"], ["fly"]]
)
def test_wrong_arguments_have_a_status_of_their_own(
    arguments: list[str], lora: KubectlLora
) -> None:
    ran = lora.run(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("kubectl lora")
    assert (ran.err.count("\n"), ran.err.count(" --help\n")) == (1, 1), ran.err


def test_a_reader_that_has_seen_enough_is_no_error(lora: KubectlLora, fleet: str) -> None:
    command = "kubectl lora ls | head -1; echo ${PIPESTATUS[0]}"
    run = subprocess.run(
        ["bash", "-c", command], env=lora.environment, capture_output=True, text=True
    )
    assert run.stdout.splitlines()[-1] == "0"
    assert run.stderr == ""


RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/{}"


@pytest.fixture
def tenant(kube: KubeRest, namespace: str) -> str:
    """A user who may read adapters of the namespace, and nothing else."""
    reads = {
        "apiGroups": ["lorafleet.dev"],
        "resources": ["loraadapters"],
        "verbs": ["get", "list"],
    }
    kube.create(RBAC.format(namespace, "roles"), {"metadata": {"name": "t"}, "rules": [reads]})
    kube.create(
        RBAC.format(namespace, "rolebindings"),
        {
            "metadata": {"name": "t"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "t"},
            "subjects": [{"kind": "User", "name": f"tenant-{namespace}"}],
        },
    )
    return f"tenant-{namespace}"


def test_a_tenant_sees_what_it_may_and_is_told_what_it_may_not(
    lora: KubectlLora, fleet: str, tenant: str
) -> None:
    as_tenant = ("--as", tenant)
    assert lora.run("ls", "-o", "name", *as_tenant).out == lora.run("ls", "-o", "name").out
    assert lora.run("history", "sql", *as_tenant).out == lora.run("history", "sql").out
    top = lora.run("top", *as_tenant)
    assert top.status == 0
    engines = [line.split()[:2] for line in top.out.splitlines() if "/engine-" in line]
    assert engines == [[f"{fleet}/engine-0", "main"], [f"{fleet}/engine-1", "main"]]
    notes = [line for line in top.out.splitlines() if line.startswith("note: ")]
    assert notes[0].startswith("note: no EnginePools: forbidden: enginepools.lorafleet.dev is")
    assert notes[1] == "note: 2 engines are shown as these adapters' statuses tell of them, no more"
    refused = lora.run("rollback", "sql", *as_tenant)
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    assert "kubectl lora: forbidden: " in refused.err
    assert 'cannot update resource "loraadapters"' in refused.err
    everywhere = lora.run("ls", "-A", *as_tenant)
    assert "at the cluster scope" in everywhere.err
    stranger = lora.run("ls", "--as", "nobody")
    assert (stranger.status, stranger.out) == (1, "")


def test_a_tenant_is_told_why_with_what_it_may_read(
    lora: KubectlLora, fleet: str, tenant: str
) -> None:
    why = lora.run("why", "sql", "--as", tenant)
    assert (why.status, why.err) == (0, "")
    lines = [line.rstrip() for line in why.out.splitlines()]
    assert "Ready      True    Ready   all is well" in lines
    assert "engine-1  ?     wanted, served, 2 running  gpu   -" in lines
    assert "does not exist" not in why.out
    notes = [line for line in lines if line.startswith("note: left out: forbidden: ")]
    assert ["enginepools" in note for note in notes] == [True, False, False]
    told = json.loads(lora.run("why", "sql", "--as", tenant, "-o", "json").out)
    assert (told["chosen"], told["wanted"], len(told["notes"])) == ([], None, 3)
