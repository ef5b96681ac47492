"""The leases on a real API server, with the rights of the chart: what is written and what is refused."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from chart_role import RELEASE, kubeconfig, token
from kube_rest import TABLE, KubeRest
from kubernetes.aio import config
from lorafleet_operator.cluster.leases import Leases
from lorafleet_operator.cluster.requests import NoAnswer
from lorafleet_operator.lease import Me, Record, shard_of
from lorafleet_operator.tenure import Tenure

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster import LocalCluster


@pytest.fixture
async def connected(cluster: LocalCluster, kube: KubeRest, namespace: str, tmp_path: Path) -> None:
    limited = kubeconfig(cluster.kubeconfig, tmp_path / "role", token(kube, namespace))
    await config.load_kube_config(str(limited))


async def test_a_lease_is_written_only_on_the_version_that_was_read(
    connected: None, kube: KubeRest, namespace: str
) -> None:
    leases = Leases(namespace, RELEASE, 60.0)
    assert await leases.all() == []
    stamp = "2026-01-01T00:00:00.000001Z"
    first = Record(0, holder="a", seconds=15, renewed=stamp, acquired=stamp, shards=2)
    made = await leases.write(first)
    assert made is not None
    assert replace(made, version="") == first
    assert await leases.write(replace(first, holder="b")) is None, "it exists by now"
    place = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    table = kube.get(place, accept=TABLE)
    assert [row["cells"][:2] for row in table["rows"]] == [[f"{RELEASE}-0", "a"]], "kubectl get"
    asked = await leases.write(replace(made, asked_by="b"))
    assert asked is not None
    assert await leases.write(replace(made, holder="c")) is None, "it has another version by now"
    released = await leases.write(replace(asked, holder=""))
    assert released is not None
    assert await leases.all() == [released]
    assert (released.holder, released.asked_by, released.shards) == ("", "b", 2)

    kube.create(place, {"metadata": {"name": f"{RELEASE}-1"}, "spec": {}})
    assert await leases.all() == [released], "of others it knows nothing"
    kube.delete(f"{place}/{RELEASE}-0")
    assert await leases.write(released) is None, "it was gone, and is new"
    assert [each.holder for each in await leases.all()] == [""]
    await leases.close()
    elsewhere = Leases("default", RELEASE, 60.0)
    with pytest.raises(NoAnswer, match="leases in namespace default: 403 Forbidden"):
        await elsewhere.all()
    await elsewhere.close()


async def test_two_in_competition_share_two_shards_and_one_inherits_all(
    connected: None, namespace: str
) -> None:
    told: dict[str, list[set[int]]] = {"a": [], "b": []}

    def tenure(name: str) -> Tenure:
        return Tenure(Leases(namespace, RELEASE, 60.0), Me(name, 2, 15), told[name].append)

    async def until(tenure: Tenure, held: int) -> None:
        async with asyncio.timeout(60):
            while len(tenure.held) != held:
                await asyncio.sleep(0.05)

    pools = ["team-0/pool", "team-1/pool"]
    assert {shard_of(pool, 2) for pool in pools} == {0, 1}
    a, b = tenure("a"), tenure("b")
    a.start()
    await until(a, 2)
    term = a.term(pools[0])
    b.start()
    await until(b, 1)
    assert len(a.held) == 1
    assert [a.term(pool) is None for pool in pools] == [b.term(pool) is not None for pool in pools]
    assert term is not None
    assert (term.left() > 0) is (a.term(pools[0]) is term)
    await a.close()
    assert a.held == []
    await until(b, 2)
    assert [b.term(pool) is None for pool in pools] == [False, False]
    assert set().union(*told["b"]) == {0, 1}
    await b.close()
