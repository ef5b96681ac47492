"""The text of the series of all adapters, as Prometheus reads it."""

from __future__ import annotations

from lorafleet_operator.metrics import AdapterSeries, Shown
from prometheus_client.parser import text_string_to_metric_families


def test_what_is_written_piece_by_piece_reads_back_whole_whatever_a_model_is_called() -> None:
    series = AdapterSeries()
    said = (("Ready", "True"), ("Placed", "Unknown"))
    for number in range(450):
        series.show("ns", f"a-{number}", Shown('or"g\\m\n', said, desired=3, ready=2))
    series.forget("ns", "a-7")
    pieces = list(series.text())
    assert max(map(len, pieces)) < 200 * 6 * 150
    info, condition, engines = text_string_to_metric_families("".join(pieces))
    assert [len(each.samples) for each in (info, condition, engines)] == [449, 449 * 6, 449 * 2]
    assert info.samples[0].labels == {
        "namespace": "ns",
        "name": "a-0",
        "base_model": 'or"g\\m\n',
    }
    shown = {(s.labels["type"], s.labels["status"]) for s in condition.samples if s.value == 1}
    assert shown == set(said)
    assert {(s.labels["state"], s.value) for s in engines.samples} == {("desired", 3), ("ready", 2)}
