"""The pattern matcher agrees with PEFT's rule and stays linear where `re` does not."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lorafleet.pattern import Budget, Pattern
from lorafleet.pattern_syntax import PatternError

NAMES = [
    "model.layers.1.self_attn.q_proj",
    "model.layers.11.self_attn.q_proj",
    "model.layers.0.mlp.experts.3.gate_proj",
    "lm_head",
    "q_proj",
    "xq_proj",
    "",
]
KEYS = [
    "q_proj",
    r"layers\.1\.self_attn\.q_proj",
    r".*layers\.1\.self_attn\.q_proj$",
    r"^model.layers.1.self_attn.q_proj",
    r".*\.experts\..*",
    r"layers\.\d+\.self_attn\.(q|k)_proj",
    r"(?:self_attn|mlp)\..*_proj",
    r"layers\.[0-9]{1,2}\..*",
    r"[^.]*_proj",
    r"[a-z_]+?",
    r"layers\.1{2}\..*",
    r"l\w_\Dead",
    r"model(\.\w+)*",
    r"(^model|lm).*",
    r"lm_head|q_proj",
    r"x?q_proj$",
    "",
    r"[\w.]*\.q_proj",
    r"[]a]*",
    r"\^",
]


def peft_matches(key: str, name: str) -> bool:
    return re.match(rf"(.*\.)?({key})$", name) is not None


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", NAMES)
def test_a_key_matches_as_in_peft(key: str, name: str) -> None:
    assert Pattern(key).matches(name) == peft_matches(key, name)


ATOMS = st.sampled_from(["a", "b", ".", r"\.", "[ab]", "[^a]", r"\d", "^", "$", "1"])


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


@settings(deadline=None, max_examples=300)
@given(
    st.recursive(ATOMS, compound, max_leaves=6),
    st.lists(st.text("ab.1", max_size=8), min_size=1, max_size=4),
)
def test_random_keys_match_as_in_peft(key: str, names: list[str]) -> None:
    try:
        pattern = Pattern(key)
    except PatternError:
        assume(False)
        return
    for name in names:
        assert pattern.matches(name) == peft_matches(key, name), name
        assert pattern.matches(name) == peft_matches(key, name), "from the memo"


@pytest.mark.parametrize("key", ["(a+)+b", "(.*.*.*.*.*)*x", "(a|a)*b", "(a*)*(a*)*(a*)*b"])
def test_a_catastrophic_key_costs_little(key: str) -> None:
    budget = Budget()
    pattern = Pattern(key, budget)
    before = budget.left
    assert not pattern.matches("a" * 500 + "c")
    assert before - budget.left < 100_000


@pytest.mark.parametrize(
    "key",
    [
        "(?=a)b",
        r"(a)\1",
        r"\bq",
        "a**",
        "a{2}{3}",
        "*a",
        "(a",
        "a)",
        "[a",
        "a{x}",
        "a{3,2}",
        "a{1001}",
        "((((a{1000}){1000}){1000}){1000})",
        "(){1000}(){1000}(){1000}(){1000}(){1000}",
        "(" * 25 + ")" * 25,
        "a" * 513,
        "a\\",
        "[b-a]",
        "^*",
    ],
)
def test_what_is_not_supported_is_refused(key: str) -> None:
    with pytest.raises(PatternError) as refused:
        Pattern(key)
    assert str(refused.value)


def test_work_is_bounded_over_all_names() -> None:
    pattern = Pattern(".*a.{40}", Budget(100_000))
    names = [f"{n:b}".replace("1", "a").replace("0", "b") * 4 for n in range(10_000)]
    with pytest.raises(PatternError, match="too costly"):
        list(map(pattern.matches, names))


@settings(deadline=None)
@given(st.text("ab.*+?()[]{}|^$\\d1-,", max_size=12))
def test_any_text_gives_a_pattern_or_our_error(key: str) -> None:
    assert outcome(key) in (True, False) or str(outcome(key))


def outcome(key: str) -> bool | PatternError:
    try:
        return Pattern(key, Budget(2_000_000)).matches("model.layers.1.q_proj")
    except PatternError as refused:
        return refused
