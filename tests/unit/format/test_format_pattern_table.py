"""The first key that applies is PEFT's, whether a dictionary finds it or an automaton."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from lorafleet.pattern import MAX_WORK, Budget, Pattern
from lorafleet.pattern_syntax import PatternError
from lorafleet.pattern_table import PatternTable

SEGMENTS = st.sampled_from(["model", "layers", "0", "1", "11", "q_proj", "xq_proj", "mlp", "a", ""])
NAMES = st.lists(SEGMENTS, min_size=1, max_size=4).map(".".join)
PLAIN = st.tuples(
    st.sampled_from(["", "^"]),
    st.lists(SEGMENTS, min_size=1, max_size=4),
    st.sampled_from([".", r"\."]),
    st.sampled_from(["", "$"]),
).map(lambda key: key[0] + key[2].join(key[1]) + key[3])
KEYS = st.one_of(
    PLAIN,
    PLAIN.map(lambda key: key.replace("a", ".").replace("1", ".")),
    st.sampled_from(
        [r".*\.layers\.1\..*", r"layers\.\d+", "(q|xq)_proj", r"^model\..*", "[^.]*", "x?q_proj"]
    ),
    st.text(r"aq_1.\^$+{}-", max_size=5),
)


def peft_first(keys: list[str], name: str) -> str | None:
    return next((key for key in keys if re.match(rf"(.*\.)?({key})$", name)), None)


def table(keys: list[str], budget: Budget | None = None) -> PatternTable:
    return PatternTable(keys, budget or Budget(), {})


@settings(deadline=None, max_examples=400)
@given(st.lists(KEYS, max_size=6, unique=True), st.lists(NAMES, min_size=1, max_size=5))
@example(["q_proj", "^q_proj"], ["a.q_proj", "q_proj"])
@example([r"a\.1", "a.1", "aq1"], ["aq1", "a.1", "1.aq1"])
@example([""], ["", "a.", "a"])
def test_the_first_key_is_the_one_that_peft_takes(keys: list[str], names: list[str]) -> None:
    try:
        found = table(keys)
    except PatternError:
        assume(False)
        return
    for name in [*names, *names]:
        assert found.first(name) == peft_first(keys, name), (keys, name)


@pytest.mark.parametrize(
    "keys",
    [
        ["q_proj", "model.layers.1.mlp.up_proj", r"^model\.layers\.1\.mlp\.up_proj$", r"a\-b", ""],
        ["q_proj"] * 3,
    ],
)
def test_plain_keys_need_no_automaton(keys: list[str]) -> None:
    compiled: dict[str, Pattern] = {}
    PatternTable(keys, Budget(), compiled)
    assert not compiled


def test_an_automaton_serves_both_mappings() -> None:
    budget, compiled = Budget(), dict[str, Pattern]()
    PatternTable(["[ab]"], budget, compiled)
    before = budget.left
    PatternTable(["[ab]"], budget, compiled)
    assert budget.left == before


def test_a_plain_key_for_each_module_of_a_large_adapter_costs_a_tenth_of_what_it_may() -> None:
    names = [
        f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj"
        for layer in range(8)
        for expert in range(64)
        for part in ("gate", "up", "down")
    ]
    budget = Budget()
    found = table(names, budget)
    assert all(found.first(name) == name for name in names)
    assert budget.left > MAX_WORK * 9 / 10


def test_the_refusal_names_the_key() -> None:
    with pytest.raises(PatternError, match=r"^key \(\?=a\) has a \(\?\.\.\) group"):
        table(["q_proj", "(?=a)"])
    with pytest.raises(PatternError, match=r"^key a\d+ makes the patterns too costly"):
        table([f"a{number}" for number in range(1000)], Budget(10_000))
    greedy = table(["q_proj", ".*a.{40}"], Budget(100_000))
    names = [f"{n:b}".replace("1", "a").replace("0", "b") * 4 for n in range(10_000)]
    with pytest.raises(PatternError, match=r"^key \.\*a\.\{40\} makes the patterns too costly"):
        list(map(greedy.first, names))


def test_outlines_without_number_are_refused_for_many_modules() -> None:
    base = "model.layers.3.mlp.experts"
    keys = [
        "".join("." if mask >> at & 1 else c for at, c in enumerate(base)) for mask in range(1024)
    ]
    found = table(keys, Budget(1_000_000))
    names = [f"x{number}.{base[:-1]}x" for number in range(1000)]
    with pytest.raises(PatternError, match="makes the patterns too costly"):
        list(map(found.first, names))
