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


def test_what_is_written_piece_by_piece_reads_back_whole_whatever_a_model_is_called() -> None:
    series = AdapterSeries()
    said = (("Ready", "True"), ("Placed", "Unknown"))
    for number in range(450):
        series.show("ns", f"a-{number}", Shown('or"g\\m\n', said, desired=3, ready=2))
    series.forget("ns", "a-7")
    pieces = list(series.text())
    assert max(map(len, pieces)) < 200 * 6 * 150
    families = list(text_string_to_metric_families("".join(pieces)))
    info, condition, engines = families
    assert [len(each.samples) for each in (info, condition, engines)] == [449, 449 * 6, 449 * 2]
    assert info.samples[0].labels == {
        "namespace": "ns",
        "name": "a-0",
        "base_model": 'or"g\\m\n',
    }
    shown = {(s.labels["type"], s.labels["status"]) for s in condition.samples if s.value == 1}
    assert shown == set(said)
    assert {(s.labels["state"], s.value) for s in engines.samples} == {("desired", 3), ("ready", 2)}

    registry = CollectorRegistry()
    registry.register(Collected(families))
    assert "".join(pieces) == generate_latest(registry).decode()
