"""What passes do for the tenants of a pool, and say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from known_fleet import Sleeper
from lorafleet_operator import metrics
from lorafleet_operator.pool_pass import reconcile_pool
from lorafleet_operator.transfer.pacing import Paces, TokenBucket
from operator_builders import pool
from operator_rig import operator, ready
from sidecar_rig import Rig

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import EnginePool


async def test_a_pool_tells_what_its_tenants_have_and_a_new_limit_at_once(
    volume: Path, tmp_path: Path
) -> None:
    def limited(adapters: int) -> EnginePool:
        selector = {"names": ["team-a"]}
        entry = {"name": "a", "namespaceSelector": selector, "quota": {"adapters": adapters}}
        made = pool(tenants=[entry])
        op.fleet.world.pools["team-a"][:] = [made]  # type: ignore[index]
        return made

    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        sleeper = Sleeper()
        op.fleet.wakeups.add("team-a/chat", sleeper)
        few = limited(2)
        assert (await reconcile_pool(few, op.fleet)).tenants == [], "no adapter has asked yet"
        sql = await op.apply(op.adapter("sql"))
        await op.apply(op.adapter("chat", "d02-all-fp32"))
        (usage,) = (await reconcile_pool(few, op.fleet)).tenants
        assert (usage.name, usage.adapters, usage.adapters_quota) == ("a", 2, 2)
        assert usage.staged_bytes >= 2 * (sql.status.size_bytes or 0) > 0
        sleeper.woken.clear()
        assert (await reconcile_pool(few, op.fleet)).tenants == [usage]
        assert not sleeper.woken.is_set()
        (usage,) = (await reconcile_pool(limited(1), op.fleet)).tenants
        assert (usage.adapters, usage.adapters_quota) == (1, 1)
        assert sleeper.woken.is_set(), "who loses its place is told"
        assert (await reconcile_pool(pool(), op.fleet)).tenants == []


async def test_what_is_sent_draws_from_the_buckets_of_its_pool_its_tenant_and_its_namespace(
    volume: Path, tmp_path: Path
) -> None:
    drawn: dict[float, int] = {}

    class Bucket(TokenBucket):
        async def take(self, amount: int) -> None:
            drawn[self.rate] = drawn.get(self.rate, 0) + amount

    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        op.fleet.paces = Paces(Bucket)
        limits = {"maxBytesPerSecond": "2Mi", "maxBytesPerSecondPerNamespace": 1 << 20}
        selector = {"names": ["team-a"]}
        tenant = {
            "name": "a",
            "namespaceSelector": selector,
            "quota": {"transferBytesPerSecond": "3Mi"},
        }
        op.fleet.world.pools["team-a"][:] = [pool(transfer=limits, tenants=[tenant])]  # type: ignore[index]
        sent = metrics.TRANSFER_BYTES._value.get()
        sql = await op.apply(op.adapter("sql"))
        assert ready(sql)[0] == "True"
        sent = metrics.TRANSFER_BYTES._value.get() - sent
        assert sent > 0
        assert drawn == {2 << 20: sent, 1 << 20: sent, 3 << 20: sent}
