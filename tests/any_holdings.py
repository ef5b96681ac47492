"""Hypothesis' strategies for what the engines of an adapter hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st
from lorafleet_operator.rollout import Holding, Loaded

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


def any_loaded(digests: list[str], names: list[str]) -> SearchStrategy[Loaded]:
    """One revision that an engine has loaded."""
    return st.builds(
        Loaded,
        digest=st.sampled_from(digests),
        served_name=st.sampled_from(names),
        published=st.booleans(),
    )


def any_holdings(
    digest: str, loaded: SearchStrategy[list[Loaded]]
) -> SearchStrategy[tuple[Holding, ...]]:
    """Up to six engines; `digest`: of the wanted revision, where it is staged."""
    holding = st.builds(
        Holding,
        engine=st.sampled_from("abcdef"),
        desired=st.booleans(),
        takes_orders=st.booleans(),
        digest=st.sampled_from(["", digest]),
        loaded=loaded.map(tuple),
        refused=st.booleans(),
    )
    return st.lists(holding, max_size=6, unique_by=lambda each: each.engine).map(tuple)
