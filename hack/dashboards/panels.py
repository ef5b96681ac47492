"""What a dashboard shows, without anything of how a program draws it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["stat", "timeseries", "table"]


@dataclass(frozen=True)
class Query:
    """One PromQL expression; `legend` names its series, `{{label}}` being a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. `unit` is Grafana's; `thresholds` are (value, colour) above the green base."""

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: Kind = "timeseries"
    width: int = 8
    thresholds: tuple[tuple[float, str], ...] = ()
    stacked: bool = False
    columns: tuple[str, ...] = ()
    """Labels that a table shows, the value last."""
    nothing: str = ""
    """What stands in a panel that is empty where all is well, in place of "No data"."""


@dataclass(frozen=True)
class Row:
    """Panels below a title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """What people choose on top; `metric` (a selector) and `label` say among what."""

    name: str
    label: str
    metric: str
    description: str


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; `uid` never changes, for others link to it."""

    uid: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels in the order in which they are read."""
        return tuple(panel for row in self.rows for panel in row.panels)


def graph(title: str, description: str, *queries: Query | str, **more: object) -> Panel:
    """Return a panel of curves."""
    return Panel(title, description, _queries(queries), **more)  # type: ignore[arg-type]


def stat(title: str, description: str, *queries: Query | str, **more: object) -> Panel:
    """Return a panel of one number, or a few."""
    more = {"kind": "stat", "width": 4, **more}
    return Panel(title, description, _queries(queries), **more)  # type: ignore[arg-type]


def table(title: str, description: str, query: str, *columns: str, **more: object) -> Panel:
    """Return a panel of rows, one for each series now."""
    more = {"kind": "table", "columns": columns, **more}
    return Panel(title, description, _queries([query]), **more)  # type: ignore[arg-type]


def _queries(given: object) -> tuple[Query, ...]:
    assert isinstance(given, list | tuple)
    return tuple(each if isinstance(each, Query) else Query(each) for each in given)


def rate(counter: str, selector: str) -> str:
    """Return a counter's rate over the range that Grafana finds fit."""
    return f"rate({counter}{{{selector}}}[$__rate_interval])"


def quantile(share: float, histogram: str, selector: str, by: str = "") -> str:
    """Return a quantile of a histogram over that range."""
    labels = f"le, {by}" if by else "le"
    inner = f"sum by ({labels}) ({rate(histogram + '_bucket', selector)})"
    return f"histogram_quantile({share}, {inner})"


POOLS = 'namespace=~"$namespace", name=~"$pool"'
"""Of what the operator says about pools."""
ADAPTERS = 'namespace=~"$tenant", name=~"$adapter"'
"""Of what the operator says about adapters."""
ENGINES = 'namespace=~"$namespace", pod=~"$engine"'
"""Of what a sidecar or vLLM says: the scrape brings the labels."""

NAMESPACE = Variable(
    "namespace", "namespace", "lorafleet_operator_pool_engines", "Namespace of pools and engines."
)
POOL = Variable(
    "pool", "name", 'lorafleet_operator_pool_engines{namespace=~"$namespace"}', "EnginePool."
)
ENGINE = Variable(
    "engine",
    "engine",
    f"lorafleet_operator_engine_reachable{{{POOLS}}}",
    "Pod of an engine of the pool.",
)
TENANT = Variable(
    "tenant",
    "namespace",
    'lorafleet_operator_adapter_info{pool_namespace=~"$namespace", pool=~"$pool"}',
    "Namespace of adapters.",
)
ADAPTER = Variable(
    "adapter",
    "name",
    'lorafleet_operator_adapter_info{namespace=~"$tenant", pool_namespace=~"$namespace", pool=~"$pool"}',
    "LoRAAdapter.",
)
