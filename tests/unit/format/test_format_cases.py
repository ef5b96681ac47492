"""Every handed case gives what INDEX.tsv says, with the numbers of EXPECTED.json.

The cases of sources (shards, pickles, missing files) and of names have tests of their own.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import pytest
from format_cases import CASES, EXPECTED, canonical_data, deltas, engine_of, plan, read_source
from lorafleet.errors import AdapterRejected
from lorafleet.header import header_length, parse_header
from lorafleet.layout import plan_layout
from lorafleet.peft_config import AdapterConfig

INDEX = list(csv.DictReader((CASES / "INDEX.tsv").read_text().splitlines(), delimiter="\t"))
ELSEWHERE = {
    "d04-fp16-overflow",  # its values are refused while staging
    "d42-sharded-with-index",
    "d44-bin-weights",
    "d45-bin-unsafe-pickle",
    "d51-config-missing",
    "o05-names",
}
FOLDERS = {"d54-hf-cache-symlinks": "snapshots/0123abcd"}
OUTCOMES = {row["case-id"]: row["expected outcome"] for row in INDEX}
REFUSED = [
    (case, outcome.removeprefix("error:"))
    for case, outcome in OUTCOMES.items()
    if outcome.startswith("error:") and case not in ELSEWHERE
]
NORMALISED = [
    (case, outcome.removeprefix("normalised:"))
    for case, outcome in OUTCOMES.items()
    if outcome.startswith("normalised:") and case not in ELSEWHERE and case not in FOLDERS
]
COMPUTED = [
    (case, part) for case, parts in EXPECTED.items() if case not in ELSEWHERE for part in parts
]


@pytest.mark.parametrize(("case", "part"), COMPUTED)
def test_a_case_computes_the_expected_updates(case: str, part: str) -> None:
    source = read_source(CASES / case / (part or FOLDERS.get(case, "")))
    engine = replace(engine_of(case), dtype="float32")
    layout = plan(source, engine)
    found = deltas(layout, canonical_data(source, layout))
    wanted = EXPECTED[case][part]
    assert {name for name, numbers in found.items() if numbers["fro"]} <= set(wanted)
    for name, numbers in wanted.items():
        assert found[name].pop("shape") == numbers["shape"], name
        values = {key: value for key, value in numbers.items() if key != "shape"}
        assert found[name] == pytest.approx(values, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize(("case", "message"), REFUSED)
def test_a_case_is_refused_with_its_message(case: str, message: str) -> None:
    with pytest.raises(AdapterRejected) as refused:
        plan(read_source(CASES / case), engine_of(case))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("case", "message"), NORMALISED)
def test_a_case_says_what_was_rewritten(case: str, message: str) -> None:
    layout = plan(read_source(CASES / case), engine_of(case))
    assert any(message in line for line in layout.normalized)


@pytest.mark.parametrize("case", [c for c, o in OUTCOMES.items() if o == "loads"])
def test_a_plain_case_is_not_rewritten(case: str) -> None:
    for part in EXPECTED[case]:
        layout = plan(read_source(CASES / case / part), engine_of(case))
        assert (layout.normalized, layout.notes) == ((), ())


@pytest.mark.parametrize(("case", "part"), COMPUTED)
def test_the_canonical_image_plans_to_itself(case: str, part: str) -> None:
    """The image is a standard adapter: read again it needs no rewrite and moves nothing."""
    engine = engine_of(case)
    first = plan(read_source(CASES / case / (part or FOLDERS.get(case, ""))), engine)
    length = header_length(first.image_header[:8])
    header = parse_header(first.image_header[8 : 8 + length], first.data_bytes)
    config = AdapterConfig.parse(first.config_json, adapter="again")
    again = plan_layout(header, config, engine, adapter="again")
    assert again.modules == first.modules
    assert again.normalized == ()
    assert again.image_header == first.image_header
    assert again.config_json == first.config_json
    copies = list(again.copies(0, again.data_bytes))
    assert [(c.src_offset, c.dst_offset, c.rows) for c in copies] == [(0, 0, 1)]


def test_every_case_is_looked_at() -> None:
    seen: set[Any] = {case for case, _ in COMPUTED + REFUSED + NORMALISED}
    assert seen | ELSEWHERE == {path.name for path in CASES.iterdir() if path.is_dir()}
