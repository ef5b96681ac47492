"""An API server that ends watches with an error, as it does while its etcd changes leaders."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from api_proxy import ApiProxy, error_event
from localstack import LocalStack
from lorafleet_operator.lasting_watches import RETRY_SECONDS
from simulated_fleet import SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from localcluster import LocalCluster

ENGINES, REPLICAS, SECONDS = 2, 2, 60
TIMES = 4
"""How often in a row each watch breaks."""
GIVEN = {
    "leader": error_event(500, "InternalError", "etcdserver: leader changed"),
    "gone": error_event(410, "Expired", "too old resource version: 1 (2)"),
    "none": b'{"type":"ERROR","object":{}}\n',
    "cut": b'{"type":"MODIFIED","object":{"kind":"Pod","meta',
}


@pytest.mark.parametrize("last_words", GIVEN.values(), ids=GIVEN)
async def test_a_watch_that_ends_with_an_error_begins_again_with_a_list(
    mortal: LocalCluster, tmp_path: Path, last_words: bytes, request: pytest.FixtureRequest
) -> None:
    """Of every kind, in the whole cluster; no resync helps."""
    namespace = f"watches-{request.node.callspec.id}"
    fleet = SimulatedFleet(
        mortal.kubeconfig, tmp_path, namespace, engines=ENGINES, replicas=REPLICAS,
        poll_seconds=3600,
    )  # fmt: skip
    with LocalStack(tmp_path) as stack:
        async with fleet, ApiProxy(mortal.kubeconfig) as proxy:
            operator = stack.start_operator(
                proxy.write_kubeconfig(tmp_path / "kubeconfig"),
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
                LORAFLEET_RESYNC_SECONDS="3600",
                LORAFLEET_LEASE_NAMESPACE=namespace,
                LORAFLEET_POD_SELECTOR="app=simulated",
            )
            await fleet.apply("a-0")
            await fleet.settled(SECONDS)
            watched = {place for place, count in proxy.open.items() if count}
            kinds = {place.rsplit("/", 1)[1] for place in watched}
            assert kinds >= {"pods", "enginepools", "loraadapters", "adaptergrants"}
            assert kinds >= {"services", "endpointslices", "namespaces", "nodes"}
            lists, began = proxy.lists.copy(), asyncio.get_running_loop().time()
            proxy.break_watches(last_words)
            await until(lambda: all(proxy.broken[place] >= TIMES for place in watched))
            took = asyncio.get_running_loop().time() - began
            assert took >= sum(RETRY_SECONDS[: TIMES - 1]), "no busy loop"
            # What no watch tells of is seen in the lists.
            await fleet.apply("a-0", 2)
            await fleet.apply("a-1")
            await fleet.settled(SECONDS)
            proxy.mend()
            await until(lambda: all(proxy.open[place] for place in watched))
            await fleet.apply("a-1", 2)
            await fleet.settled(SECONDS)
            assert operator.process.running
            log = operator.process.log.read_text()
            assert "Traceback" not in log
            assert all(proxy.lists[place] - lists[place] >= TIMES - 1 for place in watched)
