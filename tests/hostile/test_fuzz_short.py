"""A short run of the fuzzer (`hack/fuzz` makes long ones), and what it found before."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from fuzzing.limits import measured
from fuzzing.targets import TARGETS
from fuzzing.worker import make
from lorafleet.errors import InvalidAdapter
from lorafleet.peft_config import AdapterConfig

CORPUS = sorted((Path(__file__).parent.parent / "fuzz_corpus").glob("*-*"))
SHARE = {"header": 2000, "config": 1000, "layout": 700, "frames": 5000, "pickle": 500, "stage": 30}


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_inputs_of_each_target_break_no_rule(name: str) -> None:
    target = TARGETS[name]()
    try:
        assert target.run(target.make(Random(1), valid=True))
        for number in range(SHARE[name]):
            measured(target, make(target, name, 4, number), traced=number % 100 == 0)
    finally:
        target.close()


def test_inputs_that_were_found_break_no_rule_again() -> None:
    for path in CORPUS:
        target = TARGETS[path.name.partition("-")[0]]()
        try:
            measured(target, path.read_bytes(), traced=True)
        finally:
            target.close()


def test_many_keys_with_repeats_are_refused_before_they_fill_the_memory() -> None:
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "rank_pattern": {f"{number}a{{990}}a{{900}}": 4 for number in range(1000)},
    }
    with pytest.raises(InvalidAdapter, match="makes the patterns too costly"):
        AdapterConfig.parse(json.dumps(config).encode(), adapter="team-a/sql")
