"""Whole passes against real sidecars and fake engines, without an API server."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from known_fleet import Sleeper
from lorafleet_operator import metrics
from lorafleet_operator.api.v1alpha1 import DropUnmatched
from lorafleet_operator.deletion import let_go
from lorafleet_operator.pool_pass import reconcile_pool
from operator_builders import adapter as built
from operator_builders import pool
from operator_rig import CASES, operator, ready
from processes import free_port
from safetensors.torch import load_file, save_file
from servers import LyingServer
from sidecar_rig import Rig
from source_builders import artifact
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter


async def test_one_pass_brings_an_adapter_from_nothing_to_ready(
    volume: Path, tmp_path: Path
) -> None:
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        Rig(volume / "b", pod_uid="u1") as b,
        operator(tmp_path, a, b) as op,
    ):
        sql = await op.apply(op.adapter("sql"))
        assert ready(sql)[:2] == ("True", "Ready")
        assert await a.answer("team-a/sql") == sql.status.digest[7:19]
        assert await b.answer("team-a/sql") == sql.status.digest[7:19]
        again = await op.apply(sql)
        assert again.status.to_api() == sql.status.to_api()
        assert a.engine.loads == b.engine.loads == [("team-a/sql", sql.status.digest)]


async def test_two_adapters_of_one_content_are_ready_after_one_pass_each(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        both = await asyncio.gather(op.apply(op.adapter("sql")), op.apply(op.adapter("chat")))
        assert [ready(made) for made in both] == [
            ("True", "Ready", "all engines serve the wanted revision")
        ] * 2
        op.forget_sources()
        for link in op.fleet.links.all():
            link.digests.clear()
        again = [await op.apply(made) for made in both]
        assert [ready(made)[0] for made in again] == ["True", "True"]
        assert len(a.engine.loads) == 2


async def test_of_two_adapters_with_one_source_each_is_refused_by_its_own_name(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        first = op.adapter("first", "d10-rank-over-max")
        second = first.model_copy(update={"metadata": built("second").metadata})
        for made in (first, second):
            op.keep(made)
            message = ready(await op.apply(made))[2]
            assert message.startswith(f"adapter {made.key}: LoRA rank 16 is greater than")


OTHERS = "model.layers.0.mlp.gate_proj: lora_A in the engine's slot is not what was staged"


@pytest.mark.parametrize(("fault", "line"), [("refuse", "CUDA error: no"), ("wrong", OTHERS)])
async def test_a_revision_that_one_engine_refuses_is_published_nowhere_and_taken_out_again(
    volume: Path, tmp_path: Path, fault: str, line: str
) -> None:
    """`refuse`: vLLM says no. `wrong`: it said yes, and the proof found its slots to be wrong."""
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        Rig(volume / "b", pod_uid="u1") as b,
        operator(tmp_path, a, b) as op,
    ):
        sql = await op.apply(op.adapter("sql"))
        old = sql.status.digest
        # Another adapter tells what the digest of the new content will be.
        probe = await op.apply(op.adapter("probe", "d02-all-fp32"))
        assert not await let_go(probe, op.fleet)
        getattr(b.engine.behaviour, fault)[probe.status.digest] = line
        op.put("sql", "d02-all-fp32")
        op.forget_sources()
        sql = await op.apply(sql)
        status, reason, message = ready(sql)
        assert (status, reason) == ("False", "EngineRejected")
        assert line in message
        assert f"{old[:19]} keeps serving team-a/sql" in message
        assert await a.answer("team-a/sql") == old[7:19]
        assert await b.answer("team-a/sql") == old[7:19]
        assert {r.digest for r in b.engine.revisions.values()} == {old}


async def test_a_restarted_operator_needs_no_source_for_what_is_served(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        sql = await op.apply(op.adapter("sql"))
        shutil.rmtree(op.root)
        op.forget_sources()
        again = await op.apply(sql)
        assert ready(again)[:2] == ("True", "Ready")
        assert await a.answer("team-a/sql") == sql.status.digest[7:19]


async def test_an_engine_that_leaves_the_plan_unloads_and_a_deleted_adapter_goes_everywhere(
    volume: Path, tmp_path: Path
) -> None:
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        Rig(volume / "b", pod_uid="u1") as b,
        operator(tmp_path, a, b) as op,
    ):
        sql = await op.apply(op.adapter("sql"))
        fewer = op.adapter("sql", placement={"policy": "Spread", "replicas": 1})
        sql = await op.apply(fewer.model_copy(update={"status": sql.status}))
        assert ready(sql)[0] == "True"
        assert sorted(len(rig.engine.served) for rig in (a, b)) == [0, 1]
        assert not await let_go(sql, op.fleet)
        assert [rig.engine.served for rig in (a, b)] == [{}, {}]
        assert [rig.sidecar.store.revisions() for rig in (a, b)] == [[], []]


async def test_a_more_important_adapter_takes_a_place_and_gives_it_back_when_it_goes(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        op.fleet.world.pools["team-a"][:] = [pool(maxAdaptersPerEngine=1)]  # type: ignore[index]
        low = await op.apply(op.adapter("low"))
        assert ready(low)[0] == "True"
        woken = Sleeper()
        op.fleet.wakeups.add(low.key, woken)
        high = await op.apply(op.adapter("high", "d02-all-fp32", priority=1))
        async with asyncio.timeout(60):
            await woken.woken.wait()
        assert ready(high)[0] == "True"
        low = await op.apply(low)
        assert ready(low) == (
            "False",
            "Preempted",
            "0 of 1 engines: engine-0: has 1 of 1 adapters; team-a/high of higher priority",
        )
        assert set(a.engine.served) == {"team-a/high"}
        op.fleet.world.adapters["team-a/pool"].remove(  # type: ignore[attr-defined]
            next(k for k in op.fleet.world.adapters["team-a/pool"] if k.key == high.key)
        )
        assert not await let_go(high, op.fleet)
        low = await op.apply(low)
        assert ready(low)[0] == "True"
        assert set(a.engine.served) == {"team-a/low"}


async def test_an_adapter_that_one_engine_refuses_three_times_goes_to_another_that_takes_it(
    volume: Path, tmp_path: Path
) -> None:
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        Rig(volume / "b", pod_uid="u1") as b,
        operator(tmp_path, a, b) as op,
    ):
        probe = await op.apply(op.adapter("probe"))  # tells the digest
        assert not await let_go(probe, op.fleet)
        a.engine.behaviour.refuse[probe.status.digest] = "CUDA error: no"
        sql = await op.apply(op.adapter("sql", placement={"policy": "Spread"}))
        for _ in range(3):
            assert ready(sql)[:2] == ("False", "EngineRejected")
            assert [entry.pod_name for entry in sql.status.engines] == ["engine-0"]
            sql = await op.apply(sql)
        assert ready(sql)[0] == "True"
        assert [set(rig.engine.served) for rig in (a, b)] == [set(), {"team-a/sql"}]


async def test_an_update_is_ready_while_requests_still_run_on_the_old_revision(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        sql = await op.apply(op.adapter("sql"))
        old = sql.status.digest
        running = await a.held_request("team-a/sql")
        op.put("sql", "d02-all-fp32")
        op.forget_sources()
        sql = await op.apply(sql)
        assert ready(sql)[0] == "True"
        assert await a.answer("team-a/sql") == sql.status.digest[7:19]
        assert sql.status.digest != old
        waiting = await let_go(sql, op.fleet)
        assert waiting.busy == ("engine-0",)
        a.engine.release()
        assert await running == old[7:19]
        await until(lambda: not a.engine.revisions)
        assert not await let_go(sql, op.fleet)


async def test_a_pool_unloads_what_belongs_to_nobody_and_nothing_else(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        await op.apply(op.adapter("sql"))
        gone = await op.apply(op.adapter("gone", "d02-all-fp32"))
        op.fleet.world.existing["team-a"].remove(gone.key)  # type: ignore[attr-defined]
        status = await reconcile_pool(pool(), op.fleet)
        assert set(a.engine.served) == {"team-a/sql"}
        assert status.engines_summary == "1/1"


async def test_a_pool_hides_each_orphan_at_once_whatever_still_runs_on_them(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        for name in ("one", "two"):
            await op.apply(op.adapter(name, "d02-all-fp32"))
        op.fleet.world.existing["team-a"].clear()  # type: ignore[attr-defined]
        running = [await a.held_request(f"team-a/{name}") for name in ("one", "two")]
        await reconcile_pool(pool(), op.fleet)
        assert a.engine.served == {}
        assert len(a.engine.revisions) == 2
        a.engine.release()
        await asyncio.gather(*running)
        await until(lambda: not a.engine.revisions)


async def test_an_engine_that_restarts_takes_readiness_away_until_it_serves_again(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        sql = await op.apply(op.adapter("sql"))
        link = op.fleet.links.all()[0]
        await a.engine.kill()
        await until(lambda: link.inventory is not None and not link.inventory.loaded)
        sql = await op.apply(sql)
        assert ready(sql)[:2] == ("False", "EngineUnreachable")
        assert sql.status.desired_engines == 1
        await a.engine.start()
        await until(lambda: link.inventory is not None and link.inventory.loaded)
        await until(lambda: a.engine.served)
        await link.refresh()
        sql = await op.apply(sql)
        assert ready(sql)[0] == "True"


def said(made: LoRAAdapter, type_: str) -> tuple[str, str, str] | None:
    found = [(c.status, c.reason, c.message) for c in made.status.conditions if c.type == type_]
    return found[0] if found else None


def edited(made: LoRAAdapter, **spec: Any) -> LoRAAdapter:
    """The adapter after an edit of its spec, which gives it another generation."""
    generation = (made.metadata.generation or 0) + 1
    return made.model_copy(
        update={
            "spec": made.spec.model_copy(update=spec),
            "metadata": made.metadata.model_copy(update={"generation": generation}),
        }
    )


async def test_rewrites_are_counted_and_named_and_have_no_part_in_readiness(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        sql = await op.apply(op.adapter("sql", "d21-orig-mod-prefix"))
        assert ready(sql)[0] == "True"
        status, reason, message = said(sql, "Normalized") or ("", "", "")
        assert (status, reason) == ("True", "Rewritten")
        assert message.startswith("1 rewrite: prefix removed: _orig_mod. (")
        plain = await op.apply(op.adapter("plain", "d01-plain-bf16"))
        assert (said(plain, "Normalized") or ())[:2] == ("False", "AsFound")
        assert said(plain, "AdapterIsIdentity") is None


async def test_an_adapter_that_changes_nothing_is_served_and_says_so_until_it_does(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        sql = await op.apply(op.adapter("sql", "d50-all-lora-b-zero"))
        assert ready(sql)[0] == "True"
        assert (said(sql, "AdapterIsIdentity") or ())[:2] == ("True", "AllZero")
        op.put("sql", "d01-plain-bf16")
        op.forget_sources()
        sql = await op.apply(sql)
        assert (said(sql, "AdapterIsIdentity") or ())[:2] == ("False", "HasEffect")


async def test_a_tower_is_left_out_when_the_spec_says_so(volume: Path, tmp_path: Path) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        sql = await op.apply(op.adapter("sql", "d27-vision-tower-keys"))
        whole = sql.status.digest
        sql = await op.apply(edited(sql, drop_unmatched=DropUnmatched.TOWER))
        assert ready(sql)[0] == "True"
        message = (said(sql, "Normalized") or ("", "", ""))[2]
        assert message == "1 rewrite: dropped 2 tensors of visual"
        assert sql.status.digest != whole


async def test_one_adapter_is_picked_of_a_file_that_holds_two(volume: Path, tmp_path: Path) -> None:
    async with Rig(volume / "a", pod_uid="u0") as a, operator(tmp_path, a) as op:
        both = op.adapter("sql", "d18-default-in-keys")
        weights = op.root / "team-a" / "claim" / "sql" / "adapter_model.safetensors"
        tensors = load_file(weights)
        for name in list(tensors):
            tensors[name.replace(".default.", ".reference.")] = tensors[name] + 1
        save_file(tensors, weights)
        sql = await op.apply(both)
        assert "more than one adapter in one file (default, reference)" in ready(sql)[2]
        digests = []
        for name in ("default", "reference", "default"):
            source = both.spec.source.model_copy(update={"adapter_name": name})
            sql = await op.apply(edited(sql, source=source))
            assert ready(sql)[0] == "True"
            digests.append(sql.status.digest)
            assert await a.answer("team-a/sql") == sql.status.digest[7:19]
        assert digests[0] == digests[2] != digests[1]


async def test_an_artifact_is_served_by_its_digest_and_a_wrong_blob_never(
    volume: Path, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in (CASES / "d01-plain-bf16").iterdir()}
    weights = next(name for name in files if name.endswith(".safetensors"))
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        operator(tmp_path, a) as op,
        LyingServer(files=artifact(files, "team-a/sql", "v1")).running() as registry,
    ):
        host = registry.url.removeprefix("http://")
        source = {"oci": {"reference": f"{host}/team-a/sql:v1", "plainHttp": True}}
        made = built("sql", source=source)
        op.keep(made)
        blob = next(path for path, held in registry.files.items() if held == files[weights])
        registry.files[blob] = files[weights][:-1] + b"?"
        sql = await op.apply(made)
        status, reason, message = ready(sql)
        assert (status, reason) == ("False", "DigestMismatch")
        assert f"{weights} in oci://{host}/team-a/sql:v1 has the content sha256:" in message
        assert a.engine.loads == []
        registry.files[blob] = files[weights]
        op.forget_sources()
        sql = await op.apply(sql)
        assert ready(sql)[0] == "True"
        assert await a.answer("team-a/sql") == sql.status.digest[7:19]


async def test_an_engine_that_comes_later_is_filled_by_a_neighbour(
    volume: Path, tmp_path: Path
) -> None:
    async with (
        Rig(volume / "a", pod_uid="u0") as a,
        Rig(volume / "b", pod_uid="u1", listen=f"127.0.0.1:{free_port()}") as b,
        Rig(volume / "c", pod_uid="u2") as c,
        operator(tmp_path, a, b, c) as op,
    ):
        await b.stop_sidecar()
        sql = await op.apply(op.adapter("sql"))
        link = op.fleet.links.get("u1")
        assert link is not None
        read = metrics.SOURCE_READ_BYTES.labels("volume")._value.get()
        sent = metrics.TRANSFER_BYTES._value.get()
        await b.start_sidecar()
        await until(lambda: link.in_contact and link.profile is not None)
        sql = await op.apply(sql)
        assert ready(sql)[:2] == ("True", "Ready")
        assert b.engine.loads == [("team-a/sql", sql.status.digest)]
        assert metrics.SOURCE_READ_BYTES.labels("volume")._value.get() == read
        assert metrics.TRANSFER_BYTES._value.get() == sent
        assert a.sidecar._transfer.forwarded_bytes + c.sidecar._transfer.forwarded_bytes > 0
