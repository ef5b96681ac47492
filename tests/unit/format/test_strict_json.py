"""Two entries of one name are found, although most texts are read without looking for them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lorafleet.strict_json import StrictJsonError, load_object

KEYS = st.sampled_from(["a", "b", ":", "a:b", '":"', "\\u003a", "é"])
TEXTS = KEYS.map(lambda key: json.dumps(key) if "\\u" not in key else f'"{key}"')
VALUES = st.recursive(
    st.one_of(TEXTS, st.sampled_from(["1", "null", "[]", "{}"])),
    lambda inner: st.one_of(
        st.lists(st.tuples(TEXTS, inner), max_size=4).map(
            lambda pairs: "{" + ", ".join(f"{key}:{value}" for key, value in pairs) + "}"
        ),
        st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]"),
    ),
    max_leaves=12,
)


def has_two(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise LookupError
    return dict(pairs)


@given(VALUES)
@example('{"a":1,"a":1}')
@example('{"a":{"b":{"a":1,"a":2}}}')
@example('{"a":[{"b":1,"b":1}]}')
@example('{"a":{"b":1,"b":1},"a":{"b":1}}')
@example('{":":1,"\\u003a":1}')
def test_a_name_that_comes_twice_is_refused_at_any_depth(text: str) -> None:
    try:
        wanted = json.loads(text, object_pairs_hook=has_two)
    except LookupError:
        wanted = None
    if text.startswith("{") and wanted is not None:
        assert load_object(text.encode(), 10_000) == wanted
    else:
        line = "has two entries named" if text.startswith("{") else "is not a JSON object"
        with pytest.raises(StrictJsonError, match=line):
            load_object(text.encode(), 10_000)
