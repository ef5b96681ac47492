"""What the sidecar reads out of the engine's answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lorafleet.errors import LorafleetError, leaves
from lorafleet.grpc_errors import STATUS, status_of
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_sidecar.desired import ON_DEMAND, Desired, ServedName, Target
from lorafleet_sidecar.inventory import InventoryBoard, loaded_adapter, significant
from lorafleet_sidecar.metrics import TABLE, as_markdown
from lorafleet_sidecar.observed import EngineState, split_revision_path
from lorafleet_sidecar.openai_api import parse_metrics
from lorafleet_sidecar.served_names import check_served_name

VOLUME = Path("/vol")
HEX = "ab" * 32


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        (f"/vol/revisions/{HEX}/direct", (f"sha256:{HEX}", "direct")),
        (f"/vol/revisions/{HEX}", (f"sha256:{HEX}", "stock")),
        ("/vol/revisions/short/direct", ("", "")),
        (f"/elsewhere/revisions/{HEX}/direct", ("", "")),
        ("org/some-adapter", ("", "")),
    ],
)
def test_a_path_of_ours_names_digest_and_loader(path: str, wanted: tuple[str, str]) -> None:
    assert split_revision_path(path, VOLUME) == wanted


def state(**workers: tuple[list[int], list[int]]) -> EngineState:
    revision = {"revision": "org/a@v2@abababababab", "path": f"/vol/revisions/{HEX}/direct"}
    return EngineState.from_json(
        {
            "instance": "i",
            "served": {"org/a@v2": 1},
            "revisions": {"1": {**revision, "in_flight": 2, "pinned": False}},
            "workers": [
                {"rank": n, "gpu": gpu, "host": host, "unknown_counter": 1}
                for n, (gpu, host) in enumerate(workers.values())
            ],
        },
        VOLUME,
    )


def test_the_served_name_may_hold_an_at_sign() -> None:
    found = state(one=([1], [1])).find("org/a@v2", f"sha256:{HEX}", "direct")
    assert found is not None
    assert (found.lora_int_id, found.in_flight) == (1, 2)


@pytest.mark.parametrize(
    ("verified", "loading", "served", "unproved"),
    [
        (True, "", False, False),
        (False, "", False, True),
        (True, f"sha256:{HEX}", False, True),  # its probe is being asked
        (False, "", True, False),  # after a sleep it is proved anew while it is served
    ],
)
def test_what_is_being_loaded_is_told_from_what_is_right(
    verified: bool, loading: str, served: bool, unproved: bool
) -> None:
    found = state(one=([1], [1]))
    revision = replace(found.revisions[1], verified=verified)
    if not served:
        found = replace(found, served={})
    target = Target(f"sha256:{HEX}", "direct")
    wish = ServedName("org/a@v2", "org/a", coming=target, residency=ON_DEMAND)
    told = loaded_adapter(revision, found, Desired({"org/a@v2": wish}, loading=loading))
    assert told.unproved is unproved
    assert told.residency == (ON_DEMAND if unproved else "")  # the engine hears of it then


@pytest.mark.parametrize(
    ("first", "second", "tier"),
    [
        (([1], [1]), ([1], [1]), pb.TIER_GPU),
        (([1], [1]), ([], [1]), pb.TIER_HOST),
        (([1], [1]), ([], []), pb.TIER_STAGED),
        (([], []), ([], []), pb.TIER_STAGED),
    ],
)
def test_a_tier_counts_only_if_every_worker_has_it(
    first: tuple[list[int], list[int]], second: tuple[list[int], list[int]], tier: pb.Tier
) -> None:
    assert state(one=first, two=second).tier(1) == tier


def test_stock_metrics_tell_slots_and_busy_adapters() -> None:
    text = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 1
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.5e9
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 10
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 20
"""
    found = parse_metrics(text)
    assert found.busy == {"a", "b", "c"}
    assert (found.max_loras, found.started, found.lora_enabled) == (4, 1.5e9, True)


def test_an_engine_without_lora_is_only_refused_when_that_is_certain() -> None:
    running = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
    started = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1\n"
    assert not parse_metrics(running + started).lora_enabled
    assert parse_metrics(running).lora_enabled
    assert parse_metrics("").lora_enabled


@pytest.mark.parametrize(
    "name", ["plain", "org/adapter", "org/adapter@v2", "with space", "ünïcode"]
)
def test_names_that_clients_can_send_are_free(name: str) -> None:
    check_served_name(name, ["base"])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("", "invalid adapter name ''"),
        ("..", "invalid adapter name"),
        ("../../etc", "invalid adapter name"),
        ("/abs", "invalid adapter name"),
        ("a" * 254, "invalid adapter name"),
        ("new\nline", "invalid adapter name"),
        ("base", "served name base conflicts with a served base model"),
    ],
)
def test_other_names_are_refused_in_one_line(name: str, line: str) -> None:
    with pytest.raises(LorafleetError) as failure:
        check_served_name(name, ["base"])
    assert str(failure.value).startswith(line)
    assert "\n" not in str(failure.value)


def inventory(**changes: int) -> pb.Inventory:
    loaded = pb.LoadedAdapter(
        served_name="n",
        in_flight=changes.get("in_flight", 1),
        draining=bool(changes.get("draining")),
    )
    worker = pb.WorkerMemory(
        resident_host_bytes=changes.get("resident", 0), loads=changes.get("loads", 0)
    )
    return pb.Inventory(loaded=[loaded], workers=[worker])


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {}, False),
        ({"in_flight": 1}, {"in_flight": 7}, False),
        ({"in_flight": 1}, {"in_flight": 0}, True),
        ({"in_flight": 2, "draining": 1}, {"in_flight": 1, "draining": 1}, True),
        ({"resident": 1}, {"resident": 2}, False),
        ({"resident": 1}, {"resident": 1 << 30}, True),
        ({"loads": 1}, {"loads": 2}, True),
    ],
)
def test_watchers_are_told_what_matters(
    before: dict[str, int], after: dict[str, int], told: bool
) -> None:
    board = InventoryBoard()
    assert board.post(inventory(**before))
    first = board.current.sequence
    assert board.post(inventory(**after)) is told
    assert board.current.sequence == first + told
    assert (significant(inventory(**before)) != significant(inventory(**after))) is told


def test_every_error_has_a_status() -> None:
    for cls in leaves():
        assert status_of(cls("x")) in set(STATUS.values())
    assert LorafleetError in STATUS


def test_the_markdown_names_every_metric_once() -> None:
    text = as_markdown()
    for series in TABLE:
        assert text.count(f"`{series.exposed_name}`") == 1
        assert series.name.startswith(("lorafleet_sidecar_", "lorafleet_engine_"))
        assert series.exposed_name.endswith("_total") == (series.kind == "counter")
