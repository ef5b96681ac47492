"""`kubectl lora` where others mean ill, are many, are old or new, or are silent."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import jsonschema
import kubectl_schema
import pytest
from api_double import ApiDouble
from kubectl_lora import KubectlLora

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

MANY = 10_000
SCHEMA = kubectl_schema.schema()
DIGEST = "sha256:" + "0a" * 32
EVIL = "\x1b]52;c;cm0gLXJmIH4=\x07\x1b[2J\x1b[1;1H\x9b31m\u202e\u2066\u200b\r\n\x00\x08\x7f"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u202e\u2066]")


def body(name: str, status: Any = None) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team-a", "name": name, "generation": 1},
        "spec": {"baseModel": "tiny", "poolRef": {"name": "main"}},
        "status": status,
    }


def ready(message: str, **status: Any) -> dict[str, Any]:
    told = {"type": "Ready", "status": "True", "reason": "Ready", "message": message}
    return {"conditions": [told], "observedGeneration": 1, "readyEngines": 1, **status}


class Crowd:
    """Adapters that are made when they are asked for: 10,000 of them, each with a long status."""

    def __len__(self) -> int:
        return MANY

    def __getitem__(self, number: int) -> dict[str, Any]:
        entry = {"podName": f"engine-{number % 100}", "digest": DIGEST, "tier": "gpu"}
        engines = [{**entry, "inFlight": number % 7, "message": "x" * 1000}] * 5
        return body(f"adapter-{number:05}", ready("well", engines=engines))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(MANY))


def pool(*engines: str) -> dict[str, Any]:
    entries = [{"podName": name, "health": "Ready", "maxLoras": 4} for name in engines]
    metadata = {"namespace": "team-a", "name": "main"}
    return {"metadata": metadata, "spec": {}, "status": {"engines": entries}}


def plugin(double: ApiDouble, folder: Path) -> KubectlLora:
    return KubectlLora(folder, double.kubeconfig(folder / "kubeconfig"))


def largest_child(command: Sequence[str], lora: KubectlLora) -> tuple[str, int]:
    """Return what a command printed, and the most memory that it had, in KiB."""
    code = (
        "import resource, subprocess, sys\n"
        "out = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True).stdout\n"
        "sys.stdout.buffer.write(out)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)\n"
    )
    run = subprocess.run(
        ["python3", "-c", code, *command],
        env=lora.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout, int(run.stderr)


def test_ten_thousand_adapters_are_read_in_pages_and_never_held(tmp_path: Path) -> None:
    with ApiDouble(adapters=Crowd(), pools=[pool("engine-0")]) as double:  # type: ignore[arg-type]
        lora = plugin(double, tmp_path)
        names, few = largest_child(["kubectl-lora", "ls", "-o", "name", "--no-headers"], lora)
        assert names.count("\n") == MANY
        lists = [each for each in double.asked if "loraadapters" in each]
        assert len(lists) == MANY // 250
        assert all("limit=250" in each for each in lists)
        text, much = largest_child(["kubectl-lora", "ls", "-o", "json"], lora)
        found = json.loads(text)
        assert len(found["adapters"]) == MANY
        jsonschema.validate({**found, "adapters": found["adapters"][::1000]}, SCHEMA)
        shown, top = largest_child(["kubectl-lora", "top", "--no-live"], lora)
        assert "and 9980 more adapters" in shown
        assert f"engines, {MANY} of {MANY} adapters ready" in shown
        busiest = [line for line in shown.splitlines() if line.startswith("team-a/adapter-")]
        assert all(line.split()[7] == "30" for line in busiest), "six requests on five engines"
        # All bodies together are 60 MB as text, ten times that as objects; an idle plugin has 45.
        assert max(few, much, top) < 120 << 10


def test_nothing_that_anybody_writes_is_obeyed_by_a_terminal(tmp_path: Path) -> None:
    status = ready(
        EVIL,
        digest=DIGEST + EVIL,
        tierSummary=EVIL,
        resolvedRevision=EVIL,
        history=[EVIL, DIGEST[:-1] + "b"],
        rolledBack={"digest": EVIL + "x", "message": EVIL, "time": EVIL},
        engines=[{"podName": EVIL, "tier": "gpu", "published": True, "digest": DIGEST + EVIL}],
    )
    adapter = body("sql", status)
    adapter["spec"]["baseModel"] = adapter["spec"]["revision"] = EVIL
    adapter["metadata"]["managedFields"] = [
        {"manager": EVIL, "time": EVIL, "fieldsV1": {"f:spec": {"f:revision": {}}}}
    ]
    engines = pool(EVIL)
    engines["status"]["engines"][0]["message"] = EVIL
    with ApiDouble([adapter, body("other" + EVIL)], [engines]) as double:
        lora = plugin(double, tmp_path)
        for command in (
            ["ls"],
            ["ls", "-o", "wide"],
            ["ls", "-o", "name"],
            ["ls", "-o", "json"],
            ["ls", "-o", "yaml"],
            ["top"],
            ["history", "sql"],
            ["history", "sql", "-o", "name"],
            ["history", "sql", "-o", "yaml"],
            ["rollback", "sql", "--to", "ffff"],
            ["why", "other"],
            ["why", EVIL.replace("\x00", "")],
        ):
            ran = lora.run(*command)
            assert ran.out or ran.err, command
            assert not CONTROL.search(ran.out), command
            assert not CONTROL.search(ran.err), command
            assert ran.err.count("\n") <= 1, command
        found = lora.run("why", "", program="kubectl_complete-lora")
        assert not CONTROL.search(found.out)


OTHERS = {
    "no status": None,
    "an empty one": {},
    "lists for objects": {"conditions": {"a": 1}, "engines": "many", "stable": [], "canary": 3},
    "objects for texts": {"digest": {"sha512": "x"}, "conditions": [{"type": "Ready"}, 3]},
    "a reason that nobody knows": {"conditions": [{"type": "Ready", "status": "Maybe",
                                                   "reason": "Dreaming", "message": "of sheep"}]},
    "a version to come": ready("new", engines=[{"podName": "e", "tier": "nvme", "shard": 3}],
                               adapterGraph={"nodes": [1, 2]}, history=[{"digest": DIGEST}]),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_a_status_of_any_version_is_shown_as_far_as_it_is_understood(
    case: str, tmp_path: Path
) -> None:
    bare = {"metadata": {"namespace": "team-a", "name": "main"}}
    with ApiDouble([body("sql", OTHERS[case])], [bare]) as double:
        lora = plugin(double, tmp_path)
        for command in (["ls"], ["top"], ["history", "sql"]):
            ran = lora.run(*command)
            assert (ran.status, ran.err) == (0, ""), command
            assert "sql" in ran.out
            if command == ["ls"]:
                assert ("Dreaming" in ran.out) == ("Dreaming" in str(OTHERS[case]))
        for verb in ("ls", "top"):
            told = json.loads(lora.run(verb, "-o", "json").out)
            jsonschema.validate(told, SCHEMA)
        failed = lora.run("rollback", "sql")
        assert failed.status == 1
        assert "no earlier revision" in failed.err
        why = lora.run("why", "sql")
        assert why.status in (0, 1)
        assert why.err.count("\n") <= 1
        assert "Traceback" not in why.err


METRICS = """
lorafleet_engine_slots 4
lorafleet_engine_adapters{tier="gpu"} 3
lorafleet_engine_requests_in_flight 5
lorafleet_engine_evictions_total{rank="0",tier="host"} 2
lorafleet_engine_pinned_bytes{rank="0",kind="arena"} 67108864
"""
PROXY = "/api/v1/namespaces/team-a/pods/{}:9464/proxy/metrics"


def test_sidecars_are_asked_through_the_proxy_and_one_that_lies_harms_no_other(
    tmp_path: Path,
) -> None:
    texts = {
        PROXY.format("good"): METRICS,
        PROXY.format("gone"): 503,
        PROXY.format("evil"): f"lorafleet_engine_slots {EVIL}\n" + "x" * 1000,
        PROXY.format("huge"): "lorafleet_engine_slots 1\n" * 300_000,
    }
    with ApiDouble([body("sql")], [pool("evil", "gone", "good", "huge")], texts) as double:
        lora = plugin(double, tmp_path)
        told = json.loads(lora.run("top", "-o", "json").out)
        found = {each["pod"]: each for each in told["engines"]}
        assert [found[name]["live"] for name in ("evil", "gone", "good", "huge")] == [
            True,
            False,
            True,
            False,
        ]
        good = found["good"]
        assert (good["slotsUsed"], good["evictions"], good["inFlight"]) == (3, 2, 5)
        assert (good["slots"], good["pinnedBytes"]) == (4, 64 << 20)
        assert found["evil"]["slots"] == 4, "as the pool's status says"
        assert len(told["notes"]) == 1
        assert told["notes"][0].startswith("no live figures of engines (2 of 4 engines): ")


def test_an_answer_that_is_none_of_an_api_server_is_one_line(tmp_path: Path) -> None:
    place = "/apis/lorafleet.dev/v1alpha1/namespaces/team-a/loraadapters"
    for answer in ("<html>\nlog in</html>", "[1]", ""):
        with ApiDouble(texts={place: answer}) as double:
            ran = plugin(double, tmp_path).run("ls")
        assert (ran.status, ran.err.count("\n")) == (1, 1), ran.err
        assert "the API server's answer is no object" in ran.err
        shutil.rmtree(tmp_path / "bin")


@pytest.mark.parametrize("name", ["../../../secrets/x?a=", "..%2F..%2Fsecrets", "..", "a/b", "A"])
def test_a_name_leads_to_no_other_path(name: str, tmp_path: Path) -> None:
    """kubectl resolves `..%2F` in a raw path: what is no name is not asked for."""
    adapter = body("sql")
    adapter["spec"]["poolRef"] = {"name": name, "namespace": name}
    with ApiDouble([adapter], [pool(name)]) as double:
        lora = plugin(double, tmp_path)
        top = lora.run("top")
        assert top.status == 0
        assert "is no name of an object" in top.out
        assert lora.run("why", name).status == 1
        assert lora.run("ls", "-n", name).status == 1
        own = "/apis/lorafleet.dev/v1alpha1/namespaces/team-a/"
        assert {each.partition("?")[0] for each in double.asked} == {
            f"{own}loraadapters",
            f"{own}enginepools",
        }


def change(kind: str, version: int, **more: Any) -> str:
    changed = body("sql")
    changed["metadata"]["resourceVersion"] = str(version)
    return json.dumps({"type": kind, "object": {**changed, **more}}) + "\n"


def test_a_watch_that_ends_goes_on_from_where_it_was(tmp_path: Path) -> None:
    gone = {"kind": "Status", "reason": "Expired", "message": f"too old {EVIL}"}
    watches = [
        change("MODIFIED", 5) + change("BOOKMARK", 9),
        change("DELETED", 11),
        json.dumps({"type": "ERROR", "object": gone}) + "\n",
    ]
    with ApiDouble([body("sql")], watches=watches) as double:
        ran = plugin(double, tmp_path).run("ls", "-w", "-o", "json")
    kinds = [json.loads(line)["type"] for line in ran.out.splitlines()]
    assert kinds == ["ADDED", "MODIFIED", "DELETED"]
    asked = [re.findall(r"resourceVersion=(\d+)", each) for each in double.asked if "watch" in each]
    assert asked == [["1"], ["9"], ["11"]]
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert ran.err.startswith("kubectl lora: too old ")
    assert not CONTROL.search(ran.err)


def test_where_the_proxy_is_forbidden_it_is_asked_once(tmp_path: Path) -> None:
    engines = [f"engine-{number}" for number in range(20)]
    texts = {PROXY.format(name): 403 for name in engines}
    with ApiDouble([body("sql")], [pool(*engines)], texts) as double:
        shown = plugin(double, tmp_path).run("top")
        assert sum("/proxy/" in each for each in double.asked) == 1
    assert "note: no live figures of engines" in shown.out
    assert shown.out.count("engine-") == len(engines)
