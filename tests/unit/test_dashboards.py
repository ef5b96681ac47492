"""What dashboards and alerts ask for is exported, with these labels; and the files are what Grafana takes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dashboards.__main__ as written
import metrics_page
import pytest
import yaml
from dashboards.asked import filled_in
from dashboards.engine_memory import ENGINE_MEMORY
from dashboards.fleet import FLEET
from dashboards.units import legend
from dashboards.units import written as with_unit

if TYPE_CHECKING:
    from dashboards.panels import Dashboard

CHART = Path(__file__).resolve().parents[2] / "charts" / "lorafleet"
BOTH = (FLEET, ENGINE_MEMORY)
OF_THE_SCRAPE = {"namespace", "pod", "job", "instance"}
"""Labels that whoever scrapes gives to everything."""
VLLM = {
    name: {"engine", "model_name"}
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
    )
}
"""What panels ask of vLLM itself; tests/chain/test_real_dashboards.py finds them in a real one."""


@dataclass(frozen=True)
class Known:
    """One line of the page of metrics."""

    kind: str
    labels: frozenset[str]


def documented() -> dict[str, Known]:
    found = {}
    for line in metrics_page.PAGE.read_text().splitlines():
        if line.startswith("| `lorafleet_"):
            name, kind, labels, _ = [cell.strip() for cell in line.strip("|").split("|", 3)]
            found[name.strip("`")] = Known(kind, frozenset(re.findall(r"`(\w+)`", labels)))
    for name, known in list(found.items()):
        if known.kind == "histogram":
            for part in ("bucket", "sum", "count"):
                found[f"{name}_{part}"] = Known("counter", known.labels | {"le"})
    return {**found, **{name: Known("gauge", frozenset(labels)) for name, labels in VLLM.items()}}


def expressions() -> list[tuple[str, str, str]]:
    """Return (where, expression, text that names labels of its result)."""
    found = [
        (f"{board.uid}: {panel.title}", query.expr, query.legend)
        for board in BOTH
        for panel in board.panels
        for query in panel.queries
    ]
    found += [
        (f"{b.uid}: ${v.name}", v.metric, f"{{{{{v.label}}}}}") for b in BOTH for v in b.variables
    ]
    for path in sorted((CHART / "alerts").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                said = " ".join(rule["annotations"].values())
                said = re.sub(r"\$labels\.(\w+)", r"\1", said)
                found.append((rule["alert"], rule["expr"], said))
    return found


def used(expression: str) -> dict[str, set[str]]:
    """Return the metrics of an expression, each with the labels that are asked of it."""
    found: dict[str, set[str]] = {}
    for name, selector in re.findall(r"\b(lorafleet_\w+|vllm:\w+)(\{[^}]*\})?", expression):
        labels = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', selector)
        found.setdefault(name, set()).update(labels)
    return found


EXPRESSIONS = expressions()


@pytest.mark.parametrize(
    ("where", "expression", "named"), EXPRESSIONS, ids=[e[0] for e in EXPRESSIONS]
)
def test_every_metric_and_label_that_is_asked_for_is_exported(
    where: str, expression: str, named: str
) -> None:
    known, asked = documented(), used(expression)
    assert asked, expression
    there: set[str] = set()
    for name, labels in asked.items():
        assert name in known, f"{name} is not in {metrics_page.PAGE.name}"
        assert labels <= known[name].labels | OF_THE_SCRAPE, f"{name} has no such label"
        there |= known[name].labels
    grouped = re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", expression)
    labels = {label.strip() for group in grouped for label in group.split(",")}
    labels |= set(re.findall(r"{{\s*(\w+)\s*}}", named))
    assert labels <= there | OF_THE_SCRAPE, where
    for name in re.findall(r"\b(?:rate|increase)\((\w+)", expression):
        assert known[name].kind == "counter", f"rate of {name}"


def test_the_pages_lines_are_read() -> None:
    assert len(documented()) > 70
    assert used('sum by (a) (lorafleet_x_total{b=~"$c", d!="e"}) / vllm:y') == {
        "lorafleet_x_total": {"b", "d"},
        "vllm:y": set(),
    }


@pytest.mark.parametrize("path", written.files(), ids=lambda path: path.name)
def test_the_files_of_the_chart_are_what_the_tables_say(path: Path) -> None:
    assert path.read_text() == written.files()[path], "run hack/dashboards/write"


@pytest.mark.parametrize("board", BOTH, ids=lambda board: board.uid)
def test_grafana_gets_what_it_imports(board: Dashboard) -> None:
    path = written.FOLDER / f"{board.uid.removeprefix('lorafleet-')}.json"
    found: dict[str, Any] = json.loads(path.read_text())
    assert found["uid"] == board.uid
    assert found["schemaVersion"] >= 41
    assert "id" not in found, "an import would overwrite somebody's dashboard"
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24
    names = {variable["name"] for variable in found["templating"]["list"]}
    text = json.dumps(panels) + json.dumps(found["templating"])
    asked = set(re.findall(r"\$(?:\{)?([a-z]\w*)", text)) - {"queryparam"}
    assert asked <= names
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["description"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
        for target in panel["targets"]:
            assert target["expr"]
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_a_panel_that_is_empty_where_all_is_well_says_so() -> None:
    found = json.loads((written.FOLDER / "fleet.json").read_text())
    said = {
        p["title"]: p.get("fieldConfig", {}).get("defaults", {}).get("noValue")
        for p in found["panels"]
    }
    assert said["Failing adapters"] == "Every adapter is Ready"
    assert said["Loads that wait for a rate"] == "No pool has spec.tenants"
    assert said["Adapters by tier"] is None, "there, no data is a fault"


def test_an_adapter_that_is_shown_leads_to_itself() -> None:
    found = json.loads((written.FOLDER / "fleet.json").read_text())
    shown = {
        p["title"]: p["fieldConfig"]["defaults"]["links"]
        for p in found["panels"]
        if p["type"] != "row"
    }
    of_adapters = (
        "Failing adapters",
        "Engines of each adapter, by tier",
        "Engines that adapters lack",
        "Trainer's step",
        "Steps that engines are behind",
    )
    for title in of_adapters:
        (link,) = shown.pop(title)
        assert link["url"].startswith("/d/lorafleet-fleet?")
        assert "var-tenant=${__" in link["url"]
        assert "var-adapter=${__" in link["url"]
    assert not any(shown.values())


def test_variables_are_filled_in_as_grafana_does() -> None:
    asked = 'rate(a{pod=~"$pod", x=~"$pods"}[$__rate_interval])'
    chosen = {"pod": ["e-0", "e.1"], "pods": ["y"]}
    assert filled_in(asked, chosen) == 'rate(a{pod=~"(e\\\\-0|e\\\\.1)", x=~"(y)"}[8s])'


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"),
        (1536, "bytes", "1.5 KiB"),
        (3 << 30, "Bps", "3 GiB/s"),
        (0.25, "percentunit", "25%"),
        (0.012, "s", "12 ms"),
        (90, "s", "1.5 min"),
        (1234567, "short", "1,234,567"),
        (0.5, "ops", "0.5 ops/s"),
    ],
)
def test_values_are_written_with_their_unit(value: float, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text


def test_series_are_called_as_the_legend_says() -> None:
    assert legend("{{pod}} rank {{ rank }}: weights", {"pod": "e-0", "rank": "1"}) == (
        "e-0 rank 1: weights"
    )
    assert legend("", {"a": "b"}) == "a=b"
