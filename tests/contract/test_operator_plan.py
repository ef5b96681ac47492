"""What `plan` and `why` tell: what the operator decided; one line if the API server is silent."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from broken_kubeconfigs import SILENT, UNREADABLE
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import kube_config
from lorafleet_operator.api.v1alpha1 import AdapterGrant
from lorafleet_operator.cli import main
from lorafleet_operator.explain import why
from lorafleet_operator.pool_pass import reconcile_pool
from operator_builders import adapter as built
from operator_builders import pool
from operator_rig import CASES, operator
from sidecar_rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter
    from operator_rig import Operator


ADAPTER = """
apiVersion: lorafleet.dev/v1alpha1
kind: LoRAAdapter
metadata: {namespace: team-a, name: sql}
spec: {baseModel: tiny, poolRef: {name: pool}, source: {http: {url: "https://example.test/sql"}}}
"""


@pytest.fixture(autouse=True)
def own_cluster() -> Iterator[None]:
    """Leave the cluster that a client connects to by default as it was."""
    before = Configuration.get_default_copy()
    yield
    Configuration.set_default(before)


def test_a_silent_cluster_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(json.dumps(SILENT))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    (tmp_path / "sql.yaml").write_text(ADAPTER)
    assert main(["plan", "-f", str(tmp_path / "sql.yaml")]) == 1
    said = capsys.readouterr().err
    assert "namespace team-a: enginepools: the API server does not answer: " in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("case", UNREADABLE)
@pytest.mark.parametrize("program", ["run", "plan"])
def test_a_kubeconfig_that_cannot_be_read_is_told_in_one_line(
    case: str,
    program: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, manifest = tmp_path / "config", tmp_path / "sql.yaml"
    config.write_bytes(UNREADABLE[case])
    manifest.write_text(ADAPTER)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    run = {
        "run": lambda: main(["run"]),
        "plan": lambda: main(["plan", "-f", str(manifest)]),
    }[program]
    status = run()
    said = capsys.readouterr().err
    if program == "plan" and not said:  # as good as no kubeconfig: it plans with the files alone
        assert (status, case) in {(0, "nothing in it")}
        return
    assert status in (1, 2)
    assert said.count("\n") == 1, said
    assert "KUBECONFIG" in said or "kubeconfig" in said


V1 = "lorafleet.dev/v1alpha1"
CREATED = "2026-01-01T00:00:00Z"
GRANT = {
    "metadata": {"namespace": "team-a", "name": "guests"},
    "spec": {"from": [{"namespace": "team-b"}], "to": [{"kind": "EnginePool"}]},
}
TENANTS = [
    {
        "name": "b",
        "namespaceSelector": {"names": ["team-b"]},
        "quota": {"adapters": 1},
        "guarantee": {"slots": 1, "arenaShare": "50%"},
    },
]


def of_namespace(op: Operator, key: str, **spec: Any) -> LoRAAdapter:
    """Return an adapter that reads a source of its namespace."""
    namespace, _, name = key.partition("/")
    shutil.copytree(CASES / "d01-plain-bf16", op.root / namespace / "claim" / name)
    claim = {"claimName": "claim", "path": name}
    spec = {"source": {"persistentVolumeClaim": claim}, **spec}
    made = built(name, poolRef={"name": "pool", "namespace": "team-a"}, **spec)
    metadata = made.metadata.model_copy(update={"namespace": namespace, "uid": f"uid-{key}"})
    return made.model_copy(update={"metadata": metadata})


async def test_why_tells_of_tenants_guests_and_names_what_the_operator_decided(
    volume: Path, tmp_path: Path
) -> None:
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        Rig(volume / "b", pod_uid="u1") as b,
        operator(tmp_path, a, b) as op,
    ):
        gpus = pool(tenants=TENANTS, maxAdaptersPerEngine=2)
        world: Any = op.fleet.world
        world.pools["team-a"][:] = [gpus]
        world.grants["team-a"] = [AdapterGrant.model_validate(GRANT)]
        one = {"placement": {"policy": "Spread", "replicas": 1}}
        made = [
            of_namespace(op, "team-a/all"),
            of_namespace(op, "team-a/more"),
            of_namespace(op, "team-b/kept", **one),
            of_namespace(op, "team-b/over"),
            of_namespace(op, "team-a/same", servedName="team-a/all"),
            of_namespace(op, "team-a/thief", servedName="team-b/kept"),
            of_namespace(op, "team-c/uninvited"),
        ]
        for each in made:
            op.keep(each)
            world.existing[each.metadata.namespace] = [each.key]
        for _ in range(3):  # what one pass gives, another's next one sees
            made = [await op.apply(each) for each in made]
        documents = [
            {
                "apiVersion": V1,
                "kind": type(each).__name__,
                **each.model_dump(mode="json", by_alias=True, exclude_none=True),
            }
            for each in (*made, *world.grants["team-a"])
        ]
        for each in documents:
            each["metadata"]["creationTimestamp"] = CREATED
        status = (await reconcile_pool(gpus, op.fleet)).to_api()
        documents.append(
            {
                **gpus.model_dump(mode="json", by_alias=True, exclude_none=True),
                "apiVersion": V1,
                "kind": "EnginePool",
                "status": status,
            }
        )
        decided, told = {}, {}
        entries = op.fleet.planner("team-a/pool").plan.entries
        for each in made:
            placed = next(c for c in each.status.conditions if c.type == "Placed")
            no = "" if placed.status == "True" else f"{placed.reason}: {placed.message}"
            chosen = entries[each.key].chosen if each.key in entries else ()
            decided[each.key] = (tuple(sorted(chosen)), no)
            plan = why(documents, each.key).plan
            assert plan is not None
            told[each.key] = (plan.chosen, ": ".join(plan.blocked or ()))
        assert told == decided
        assert [told[key][0] for key in ("team-a/all", "team-b/kept")] == [
            ("engine-0", "engine-1"),
            ("engine-0",),
        ]
        assert {key: line.partition(":")[0] for key, (_, line) in told.items() if line} == {
            "team-a/more": "NoCapacity",
            "team-b/over": "QuotaExceeded",
            "team-a/same": "NameTaken",
            "team-a/thief": "NotGranted",
            "team-c/uninvited": "NotGranted",
        }
