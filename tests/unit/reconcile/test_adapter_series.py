"""The text of the series of all adapters, as Prometheus reads it."""

from __future__ import annotations

from lorafleet_operator.metrics import AdapterSeries, Shown
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families


class Collected:
    """Families that were read, for the library to write."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def read(series: AdapterSeries) -> dict[str, Metric]:
    text = "".join(series.text())
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_what_is_written_piece_by_piece_reads_back_whole_whatever_a_model_is_called() -> None:
    series = AdapterSeries()
    said = (("Ready", "True"), ("Placed", "Unknown"))
    shown = Shown(
        'or"g\\m\n',
        said,
        desired=3,
        ready=2,
        pool="p/q",
        tiers=(("gpu", 2),),
        steps=(("e-0", 7),),
        pushed_step=9,
    )
    for number in range(450):
        series.show("ns", f"a-{number}", shown)
    series.forget("ns", "a-7")
    pieces = list(series.text())
    assert max(map(len, pieces)) < 200 * 6 * 150
    families = list(text_string_to_metric_families("".join(pieces)))
    info, condition, engines, tiers, failing, steps, pushed, sums = families
    counts = [len(each.samples) for each in families]
    assert counts == [449, 449 * 6, 449 * 2, 449, 0, 449, 449, 1]
    assert info.samples[0].labels == {
        "namespace": "ns",
        "name": "a-0",
        "base_model": 'or"g\\m\n',
        "pool_namespace": "p",
        "pool": "q",
    }
    true = {(s.labels["type"], s.labels["status"]) for s in condition.samples if s.value == 1}
    assert true == set(said)
    assert {(s.labels["state"], s.value) for s in engines.samples} == {("desired", 3), ("ready", 2)}
    assert {(s.labels["tier"], s.value) for s in tiers.samples} == {("gpu", 2)}
    assert failing.samples == []
    assert steps.samples[0].labels == {"namespace": "ns", "name": "a-0", "pod": "e-0"}
    assert steps.samples[0].value == 7
    assert pushed.samples[0].labels == {"namespace": "ns", "name": "a-0"}
    assert pushed.samples[0].value == 9
    (whole,) = sums.samples
    assert whole.labels == {"namespace": "p", "name": "q", "ready": "True"}
    assert whole.value == 449

    registry = CollectorRegistry()
    registry.register(Collected(families))
    assert "".join(pieces) == generate_latest(registry).decode()


def test_however_many_adapters_there_are_their_series_are_bounded_and_the_failing_are_there() -> (
    None
):
    series = AdapterSeries(limit=10)
    for number in range(1000):
        failing = number % 200 == 199
        said = (("Ready", "False" if failing else "True"),)
        reason = "TooLarge" if failing else ""
        series.show("ns", f"a-{number}", Shown("m", said, 1, 1, pool="ns/p", reason=reason))
    families = read(series)
    shown = {s.labels["name"] for s in families["lorafleet_operator_adapter_info"].samples}
    assert len(shown) == 10
    assert shown >= {f"a-{number}" for number in (199, 399, 599, 799, 999)}
    failing_ones = families["lorafleet_operator_adapter_failing"].samples
    assert {s.labels["reason"] for s in failing_ones} == {"TooLarge"}
    sums = families["lorafleet_operator_adapters"].samples
    assert {(s.labels["ready"], s.value) for s in sums} == {("True", 995), ("False", 5)}
