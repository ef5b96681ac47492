"""The table of served names: durable, readable again, honest about deaths."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lorafleet_sidecar.desired import Desired, ServedName, Target

ONE, TWO = Target("sha256:1", "direct"), Target("sha256:2", "device")
targets = st.none() | st.builds(Target, st.text(), st.sampled_from(["direct", "device"]))
names = st.builds(ServedName, st.text(), st.text(), targets, targets)


@given(
    st.lists(names, unique_by=lambda name: name.served_name),
    st.dictionaries(st.text(), st.integers()),
)
def test_what_was_stored_is_restored(wanted: list[ServedName], deaths: dict[str, int]) -> None:
    stored: list[Any] = []
    table = Desired({n.served_name: n for n in wanted}, deaths, "d", "i", stored.append)
    table.store()
    again = Desired.restore(json.loads(json.dumps(stored[-1])), stored.append)
    assert (again.names, again.deaths) == (table.names, deaths)
    assert (again.loading, again.loading_instance) == ("d", "i")


@pytest.mark.parametrize("table", [1, [], {}, {"names": [{}], "deaths": {}, "loading": ["", ""]}])
def test_a_table_that_nobody_wrote_is_refused(table: Any) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Desired.restore(table, lambda _table: None)


@pytest.mark.parametrize(
    ("name", "steps", "goal"),
    [
        (ServedName("n", "a", ONE), [(ONE, True)], ONE),
        (ServedName("n", "a", None, TWO, True), [(TWO, True)], TWO),
        (ServedName("n", "a", ONE, TWO, True), [(TWO, True)], TWO),
        (ServedName("n", "a", ONE, TWO, False), [(ONE, True), (TWO, False)], ONE),
        (ServedName("n", "a", ONE, TWO, True, removing=True), [], None),
    ],
    ids=["published", "first load", "switch", "prepared", "removing"],
)
def test_steps_follow_from_the_wish(
    name: ServedName, steps: list[tuple[Target, bool]], goal: Target | None
) -> None:
    assert name.steps == steps
    assert name.goal == goal


def test_every_change_is_durable_before_it_returns() -> None:
    stored: list[Any] = []
    table = Desired(save=stored.append)
    table.put(ServedName("n", "a", ONE))
    table.update("n", residency="gpu")
    table.begin_load("sha256:1", "instance-1")
    table.settle_load("sha256:1", died=True)
    table.forget("n")
    assert len(stored) == 5
    assert stored[-1] == {"names": [], "deaths": {"sha256:1": 1}, "loading": ["", ""]}


def test_a_revision_is_quarantined_after_two_deaths_and_forgiven_after_one_success() -> None:
    table = Desired()
    for expected in (False, True):
        table.begin_load("sha256:1", "i")
        table.settle_load("sha256:1", died=True)
        assert table.quarantined("sha256:1") is expected
    table.begin_load("sha256:1", "i")
    table.settle_load("sha256:1")  # refused by the engine: proves nothing
    assert table.quarantined("sha256:1")
    table.begin_load("sha256:1", "i")
    table.settle_load("sha256:1", proved=True)
    assert not table.quarantined("sha256:1")


def test_the_outcome_of_another_load_settles_nothing() -> None:
    table = Desired(deaths={"sha256:1": 1})
    table.begin_load("sha256:1", "i")
    table.settle_load("sha256:2", proved=True)
    assert (table.loading, table.deaths) == ("sha256:1", {"sha256:1": 1})


def test_suspects_are_restored_last() -> None:
    table = Desired(deaths={"sha256:1": 1})
    table.put(ServedName("bad", "a", ONE))
    table.put(ServedName("good", "a", TWO))
    assert table.in_restore_order() == ["good", "bad"]


def test_deaths_stay_with_the_digest_until_nobody_wants_it() -> None:
    table = Desired(deaths={"sha256:1": 2})
    table.put(ServedName("one", "a", ONE))
    table.put(ServedName("two", "b", ONE))
    table.forget("one")
    table.forgive(["sha256:1"])
    assert table.quarantined("sha256:1")
    table.forget("two")
    assert table.quarantined("sha256:1")
    table.forgive(["sha256:1"])
    assert not table.quarantined("sha256:1")
