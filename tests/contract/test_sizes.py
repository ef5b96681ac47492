"""What `lorafleet size` says of an adapter is what the arena gives it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from format_cases import CASES, engine_of, read_source
from inspection_command import QWEN3, QWEN3_MOE, model, run
from lorafleet.header import parse_header
from lorafleet.peft_config import AdapterConfig
from lorafleet_operator.inspection.size import adapter_size, expected_header
from lorafleet_sidecar.allocator import ALIGNMENT
from staged_cases import stage_case
from staging_builders import engine_profile, source_adapter
from staging_client import stage
from staging_server import serving

if TYPE_CHECKING:
    from pathlib import Path

PREDICTABLE = ["d01-plain-bf16", "d06-rank-and-alpha-pattern", "m01-per-expert", "d16-embed-and-lm-head-lora"]  # fmt: skip


@pytest.mark.parametrize("case", PREDICTABLE)
async def test_the_arena_gives_an_adapter_what_was_reckoned(
    case: str, volume: Path, tmp_path: Path
) -> None:
    engine = replace(engine_of(case), dtype="bfloat16")
    source = read_source(CASES / case)
    header = expected_header(source.config, source.config_text, engine)
    async with serving(volume, profile=partial(lambda given: given, engine)) as sidecar:
        await stage_case(sidecar, tmp_path, case)
        (extent,) = sidecar.store.extents()
        (revision,) = sidecar.store.revisions()
    for known in (source.header, header):  # of the file, and of its config alone
        size = adapter_size(known, source.config, engine, case)
        assert size.extent_bytes == extent.size
        assert size.rank == revision.rank


@pytest.mark.parametrize(("rank", "extents"), [(8, 1), (63, 1), (64, 2), (256, 5)])
async def test_extents_have_steps_of_the_arena(rank: int, extents: int, volume: Path) -> None:
    """2 layers of q and v of 2048: 32 KiB for each rank, and a header."""
    engine = replace(engine_profile(), max_lora_rank=256)
    adapter = source_adapter(rank=rank)
    config = AdapterConfig.parse(adapter.config, adapter="a")
    header = parse_header(adapter.header, len(adapter.data))
    expected = expected_header(config, adapter.config, engine)
    assert expected.data_bytes == header.data_bytes == len(adapter.data)
    async with serving(volume, 64 << 20, profile=partial(lambda given: given, engine)) as sidecar:
        await stage(sidecar.channel, adapter)
        (extent,) = sidecar.store.extents()
    for known in (header, expected):
        size = adapter_size(known, config, engine, "a")
        assert size.extent_bytes == extent.size == extents * ALIGNMENT
        assert size.weight_bytes == len(adapter.data)


@pytest.mark.parametrize("config", [QWEN3, QWEN3_MOE], ids=["dense", "moe"])
def test_the_command_adds_up(
    config: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path / "model", config)
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text(
        json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": "all-linear"})
    )
    flags = ("--base-model", "m", "--max-lora-rank", 16, "--max-loras", 4, "--config", adapter)
    found = run(capsys, "size", folder, *flags, "--adapters", 10, "--history", 1, "-o", "json")
    assert found.status == 0, found.err
    slots, arena = found.json["slots"], found.json["arena"]
    (size,) = found.json["adapters"].values()
    assert slots["bytes"] == 4 * slots["slotBytes"] > 8 * size["weightBytes"] / 2
    assert arena["bytes"] == 21 * size["extentBytes"]
    text = run(capsys, "size", folder, *flags, "--adapters", 10, "--history", 1).out
    assert f"LORAFLEET_ARENA_BYTES={arena['bytes'] >> 20}Mi" in text
    assert text.splitlines()[0].startswith("slots    4 of rank 16: ")


@pytest.mark.parametrize(
    ("targets", "line"),
    [
        (["query"], "names no module of m"),
        (None, "names no module of m"),
    ],
)
def test_a_config_that_fits_nothing_is_one_line(
    targets: object, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path / "model", QWEN3)
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text(
        json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": targets})
    )
    found = run(capsys, "size", folder, "--base-model", "m", "--config", adapter)
    assert (found.status, found.out) == (1, "")
    assert line in found.err
    assert found.err.count("\n") == 1
    absent = run(capsys, "size", folder, "--base-model", "m", "--config", tmp_path / "no.json")
    assert (absent.status, absent.err) == (1, f"lorafleet: {tmp_path / 'no.json'}: No such file or directory\n")  # fmt: skip
