"""The whole chain with nothing faked: API server, operator, S3, sidecar and vLLM on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from operator_chain import BASE, CASES
from real_chain import ENGINE, NOISY
from waiting import eventually

if TYPE_CHECKING:
    from real_chain import RealChain

pytestmark = [pytest.mark.cluster, pytest.mark.chain, pytest.mark.engine]


def _name(fleet: RealChain, adapter: str) -> str:
    return f"{fleet.namespace}/{adapter}"


@pytest.mark.parametrize("loader", ["direct", "device"])
def test_tokens_equal_stock_vllm_before_and_after_ten_rebuilds(
    fleet: RealChain, loader: str
) -> None:
    files = fleet.make(f"same-{loader}", seed=11, alpha=32)
    wanted = fleet.stock_tokens(ENGINE, files)
    base = fleet.tokens(ENGINE, BASE)
    assert wanted != base
    others = [fleet.make(f"other-{i}", seed=20 + i) for i in range(3)]
    name = f"same-{loader}"
    fleet.s3_adapter(name, files, loader=loader)
    for i, other in enumerate(others):
        fleet.s3_adapter(f"other-{i}", other)
    for adapter in (name, "other-0", "other-1", "other-2"):
        fleet.wait_ready(adapter)
    rebuilds = fleet.metric(ENGINE, "lorafleet_engine_rebuilds_total")
    for _ in range(10):
        # three others fill max_cpu_loras and push it out
        fleet.many(ENGINE, [_name(fleet, f"other-{i}") for i in range(3)], at_once=1)
        assert fleet.tokens(ENGINE, _name(fleet, name)) == wanted
    eventually(
        lambda: fleet.metric(ENGINE, "lorafleet_engine_rebuilds_total") - rebuilds >= 10,
        what="ten evictions gave ten rebuilds",
    )
    for adapter in (name, "other-0", "other-1", "other-2"):
        fleet.wait_gone(adapter)


def test_each_of_five_adapters_answers_for_itself_in_two_slots(fleet: RealChain) -> None:
    names = [f"tenant-{letter}" for letter in "abcde"]
    files = {name: fleet.make(name, seed=40 + i) for i, name in enumerate(names)}
    wanted = {name: fleet.stock_tokens(ENGINE, path) for name, path in files.items()}
    assert len({*wanted.values(), fleet.tokens(ENGINE, BASE)}) == 6
    for name in names:
        fleet.s3_adapter(name, files[name])
    for name in names:
        fleet.wait_ready(name)
    reads = fleet.s3.reads()
    received = fleet.metric(ENGINE, "lorafleet_sidecar_received_bytes_total")
    counters = ("loads", "evictions", "rebuilds")
    before = {c: fleet.metric(ENGINE, f"lorafleet_engine_{c}_total") for c in counters}

    order = [names[i % 5] for i in range(200)]
    answers = fleet.many(ENGINE, [_name(fleet, name) for name in order])

    assert answers == [wanted[name] for name in order]
    assert fleet.s3.reads() == reads, "the source was touched after staging"
    assert fleet.metric(ENGINE, "lorafleet_sidecar_received_bytes_total") == received
    eventually(
        lambda: fleet.metric(ENGINE, "lorafleet_engine_rebuilds_total") > before["rebuilds"],
        what="rebuilds are counted",
    )
    after = {c: fleet.metric(ENGINE, f"lorafleet_engine_{c}_total") for c in counters}
    grown = {c: after[c] - before[c] for c in counters}
    # Five share three places: an adapter comes back only where another was pushed out.
    assert grown["rebuilds"] > 0
    assert abs(grown["evictions"] - grown["rebuilds"]) <= 3
    for name in names:
        fleet.wait_gone(name)
    eventually(lambda: fleet.served(ENGINE) == set(), what="all names are gone")
    gone = fleet.complete(ENGINE, _name(fleet, names[0]))
    assert gone.status_code == 404


def test_running_requests_finish_on_their_revision_and_a_refused_one_changes_nothing(
    fleet: RealChain,
) -> None:
    first, second = fleet.make("v1", seed=61), fleet.make("v2", seed=62)
    long = 900
    wanted_first = fleet.stock_tokens(ENGINE, first, long)
    wanted_second = fleet.stock_tokens(ENGINE, second, long)
    assert wanted_first != wanted_second
    fleet.s3_adapter("moving", first, drainTimeoutSeconds=600)  # all of them run to their ends
    fleet.patch("moving", {"source": {"pollIntervalSeconds": 1}})
    status = fleet.wait_ready("moving")
    model = _name(fleet, "moving")
    moved, ended = 0.0, threading.Event()

    def keep_asking(delay: float) -> list[tuple[float, float, str]]:
        """Ask again and again; return when each request began and ended, and its answer."""
        time.sleep(delay)
        asked = []
        while not ended.is_set():
            begin = time.monotonic()
            answer = fleet.tokens(ENGINE, model, max_tokens=long)
            asked.append((begin, time.monotonic(), answer))
        return asked

    with ThreadPoolExecutor(8) as pool:
        # Staggered, so that at any moment most of them have run for a while.
        asking = [pool.submit(keep_asking, 0.4 * index) for index in range(8)]
        try:
            eventually(
                lambda: fleet.metric(ENGINE, "lorafleet_engine_requests_in_flight") >= 6,
                what="requests run",
            )
            fleet.s3.upload(second, "moving")
            eventually(
                lambda: (
                    fleet.status("moving").get("digest") not in ("", status["digest"])
                    and fleet.condition("moving", "Ready") == ("True", "Ready")
                ),
                120,
                "the second revision is Ready",
            )
            moved = time.monotonic()
            assert fleet.tokens(ENGINE, model, max_tokens=long) == wanted_second
        finally:
            ended.set()
    asked = [each for future in asking for each in future.result()]
    assert {answer for _, _, answer in asked} <= {wanted_first, wanted_second}
    assert all(answer == wanted_second for begin, _, answer in asked if begin > moved)
    switched = min(begin for begin, _, answer in asked if answer == wanted_second)
    overtaken = [each for each in asked if each[1] > switched and each[2] == wanted_first]
    assert overtaken, "no request of the first revision was still running when the name moved"
    assert fleet.tokens(ENGINE, model, max_tokens=long) == wanted_second
    second_status = fleet.status("moving")

    shutil.copytree(CASES / "d57-other-base-wider", fleet.files / "bad")
    fleet.s3.upload(fleet.files / "bad", "moving")

    def refused() -> bool:
        said = fleet.full_condition("moving", "SourceResolved")
        return said["status"] == "False" and "expected [" in said["message"]

    # Of its two files one comes first, and a look between them is refused for another reason.
    eventually(refused, what="the third revision is refused")
    assert fleet.tokens(ENGINE, model, max_tokens=long) == wanted_second
    engines = fleet.status("moving")["engines"]
    assert [e["digest"] for e in engines if e["published"]] == [second_status["digest"]]
    fleet.wait_gone("moving")


def _flip(fleet: RealChain, digest: str, module: str) -> None:
    """Turn one bit of a staged module's lora_A in the memory that the engine loads from."""
    volume = fleet.engines[ENGINE].volume
    revision = json.loads(
        (volume / "revisions" / digest.removeprefix("sha256:") / "revision.json").read_text()
    )
    with (volume / revision["arena"]).open("r+b") as arena:
        arena.seek(revision["data_offset"] + revision["modules"][module]["a"]["offset"] + 7)
        byte = arena.read(1)[0]
        arena.seek(-1, os.SEEK_CUR)
        arena.write(bytes([byte ^ 1]))


def test_one_bit_that_changed_after_staging_is_found_in_the_slot_and_never_served(
    fleet: RealChain,
) -> None:
    first, second = fleet.make("proved-1", seed=71), fleet.make("proved-2", seed=72)
    wanted = fleet.stock_tokens(ENGINE, first)
    fleet.s3_adapter("other", second)
    fleet.s3_adapter("proved", first)
    fleet.patch("proved", {"source": {"pollIntervalSeconds": 1}})
    digest, module = fleet.wait_ready("other")["digest"], "model.layers.1.mlp.up_proj"
    before = fleet.wait_ready("proved")
    _flip(fleet, digest, module)  # the same content is staged once for both
    fleet.s3.upload(second, "proved")
    eventually(
        lambda: fleet.condition("proved", "Ready") == ("False", "EngineRejected"),
        60,
        "the proof fails",
    )
    message = fleet.full_condition("proved", "Ready")["message"]
    assert f"{module}: lora_A in the engine's slot is not what was staged" in message
    engines = fleet.status("proved")["engines"]
    assert [e["digest"] for e in engines if e["published"]] == [before["digest"]]
    assert fleet.tokens(ENGINE, _name(fleet, "proved")) == wanted
    for adapter in ("proved", "other"):
        fleet.wait_gone(adapter)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("d46-truncated-download", "adapter_model.safetensors is incomplete"),
        ("d10-rank-over-max", "LoRA rank 16 is greater than max_lora_rank 8"),
        ("d57-other-base-wider", "expected ["),
        ("d27-vision-tower-keys", "model.visual.blocks.0.attn.qkv"),
        ("d51-config-missing", "adapter_config.json not found"),
        ("d48-no-tensors", "no LoRA tensors"),
        ("d59-other-base-same-shapes", "adapter was trained for other-org/some-other-7b"),
    ],
)
def test_a_bad_adapter_gets_one_line_and_the_engine_is_not_asked(
    fleet: RealChain, case: str, words: str
) -> None:
    loads = fleet.metric(ENGINE, "lorafleet_engine_loads_total")
    requests = fleet.metric(ENGINE, "lorafleet_sidecar_engine_requests_total", operation="load")
    fleet.adapter("bad", case)
    eventually(
        lambda: (
            fleet.condition("bad", "Ready")[0] == "False"
            and words in fleet.full_condition("bad", "Ready").get("message", "")
        ),
        what=f"{words!r} in {fleet.full_condition('bad', 'Ready')}",
    )
    message = fleet.full_condition("bad", "Ready")["message"]
    assert "\n" not in message
    assert fleet.metric(ENGINE, "lorafleet_engine_loads_total") == loads
    assert (
        fleet.metric(ENGINE, "lorafleet_sidecar_engine_requests_total", operation="load")
        == requests
    )
    fleet.wait_gone("bad")


def _churn(fleet: RealChain, numbers: range) -> list[bool]:
    """Let another tenant load adapters in a row and ask each, then take them all back.

    Return after each whether the quiet tenant's was still in its slot; every third time it is asked.
    """
    quiet, kept = _name(fleet, "quiet"), []
    there = {"name": "pool", "namespace": fleet.namespace}
    for number in numbers:
        name = f"noisy-{number}"
        with fleet.within(NOISY):
            fleet.s3_adapter(name, fleet.make(name, seed=900 + number), poolRef=there)
            fleet.wait_ready(name)
            fleet.tokens(ENGINE, _name(fleet, name))
        state = fleet.state(ENGINE)
        kept.append(state["served"][quiet] in state["workers"][0]["gpu"])
        if number % 3 == 2:
            assert fleet.tokens(ENGINE, quiet) == fleet.stock[quiet]
    with fleet.within(NOISY):
        for number in numbers:
            fleet.delete("loraadapters", f"noisy-{number}")
        eventually(lambda: not fleet.adapters(), 60, "the others stay after their deletion")
    return kept


def test_a_tenant_that_loads_without_pause_takes_nothing_of_what_another_is_guaranteed(
    fleet: RealChain,
) -> None:
    files, quiet = fleet.make("quiet", seed=91), _name(fleet, "quiet")
    fleet.stock[quiet] = fleet.stock_tokens(ENGINE, files)
    with fleet.within(NOISY):
        fleet.secret()
    spec = {"from": [{"namespace": NOISY}], "to": [{"kind": "EnginePool", "name": "pool"}]}
    fleet._create("adaptergrants", "AdapterGrant", "guests", spec)
    fleet.s3_adapter("quiet", files)
    fleet.wait_ready("quiet")
    assert fleet.tokens(ENGINE, quiet) == fleet.stock[quiet]
    assert not all(_churn(fleet, range(3))), "without a guarantee three others push it out"

    guarantee = {"slots": 1, "arenaShare": "2Mi"}
    selector = {"names": [fleet.namespace]}
    tenant = {"name": "quiet", "namespaceSelector": selector, "guarantee": guarantee}
    fleet.patch_pool({"tenants": [tenant]})
    state = fleet.state(ENGINE)

    def kept() -> bool:
        worker = fleet.state(ENGINE)["workers"][0]
        return state["served"][quiet] in {*worker["pinned"]} & {*worker["gpu"]}

    eventually(kept, what="the guarantee counts")
    before = fleet.state(ENGINE)["workers"][0]
    assert all(_churn(fleet, range(3, 33))), "thirty others leave it where it is"
    after = fleet.state(ENGINE)["workers"][0]
    assert after["loads"] - before["loads"] == 30
    assert after["evictions"] - before["evictions"] >= 27, "they took turns all the while"
    assert after["rebuilds"] == before["rebuilds"], "nothing had to come back for a request"

    def usage() -> dict[str, object]:
        found = fleet.status("pool", "enginepools").get("tenants", [])
        return next((each for each in found if each["name"] == "quiet"), {})

    eventually(lambda: (usage().get("adapters"), usage().get("guaranteedSlots")) == (1, 1))
    fleet.patch_pool({"tenants": []})
    fleet.wait_gone("quiet")


def test_what_a_killed_engine_lost_comes_back_from_the_arena(fleet: RealChain) -> None:
    files = fleet.make("lasting", seed=81)
    wanted = fleet.stock_tokens(ENGINE, files)
    fleet.s3_adapter("lasting", files)
    fleet.wait_ready("lasting")
    reads = fleet.s3.reads()
    received = fleet.metric(ENGINE, "lorafleet_sidecar_received_bytes_total")

    fleet.engines[ENGINE].process.signal(signal.SIGKILL)
    eventually(
        lambda: fleet.condition("lasting", "Ready")[0] != "True", 60, "Ready follows the engine"
    )
    fleet.restart_vllm(ENGINE)
    fleet.wait_ready("lasting")
    assert fleet.tokens(ENGINE, _name(fleet, "lasting")) == wanted

    fleet.sidecars[ENGINE].process.kill()
    assert fleet.tokens(ENGINE, _name(fleet, "lasting")) == wanted  # serving needs no sidecar
    fleet.start_sidecar(ENGINE)
    fleet.wait_ready("lasting")
    assert fleet.tokens(ENGINE, _name(fleet, "lasting")) == wanted

    assert fleet.operator is not None
    fleet.operator.process.kill()
    loads = fleet.metric(ENGINE, "lorafleet_engine_loads_total")
    fleet.start_operator()
    fleet.wait_ready("lasting")
    assert fleet.tokens(ENGINE, _name(fleet, "lasting")) == wanted
    assert fleet.metric(ENGINE, "lorafleet_engine_loads_total") == loads
    assert received >= 0
    assert fleet.metric(ENGINE, "lorafleet_sidecar_received_bytes_total") == 0  # since its restart
    assert fleet.s3.reads() - reads <= 8  # looks at headers; never the tensors again
    fleet.wait_gone("lasting")
