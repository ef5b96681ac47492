"""Writes docs/metrics.md from the programs' own tables: `python hack/metrics_page.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet_operator import metrics as operator
from lorafleet_operator.certificate_series import CertificateSeries
from lorafleet_operator.pool_series import PoolSeries
from lorafleet_sidecar import metrics as sidecar
from prometheus_client import Counter, Gauge, Histogram, Metric

if TYPE_CHECKING:
    from collections.abc import Iterable

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

_TEXT = """# Metrics

Written by `python hack/metrics_page.py` from the tables in the code; do not edit.

## Sidecar and engine

One endpoint per engine pod: `LORAFLEET_METRICS_LISTEN` of the sidecar, path `/metrics`. `rank` is
vLLM's worker rank. Adapter names are never labels here; of namespaces those with the most bytes are.

{sidecar}
## Operator

`LORAFLEET_LISTEN` of the operator, path `/metrics`. At most `LORAFLEET_METRICS_ADAPTERS` adapters have series of
their own, those that are not Ready first; the sums by pool count all. These series name a `namespace` themselves:
scrape with `honorLabels: true`.

{operator}"""


def page() -> str:
    """The whole page."""
    return _TEXT.format(sidecar=sidecar.as_markdown(), operator=_operator_table())


def _operator_table() -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric in vars(operator).values():
        if isinstance(metric, Counter | Gauge | Histogram):
            (family,) = metric.describe()
            suffix = "_total" if isinstance(metric, Counter) else ""
            lines.append(_row(family.name + suffix, family, metric._labelnames))
        elif isinstance(metric, operator.AdapterSeries | CertificateSeries):
            lines += [_row(each.name, each, each._labelnames) for each in metric.describe()]
        elif isinstance(metric, PoolSeries):
            for each in metric.describe():
                suffix = "_total" if each.type == "counter" else ""
                lines.append(_row(each.name + suffix, each, metric.labels()[each.name]))
    return "\n".join(lines) + "\n"


def _row(name: str, family: Metric, labels: Iterable[str]) -> str:
    shown = ", ".join(f"`{label}`" for label in labels)
    return f"| `{name}` | {family.type} | {shown} | {family.documentation} |"


def main() -> int:
    """Write the page, or with --check say whether it is current."""
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() == page():
            return 0
        print(
            "docs/metrics.md is stale: run .venv/bin/python hack/metrics_page.py", file=sys.stderr
        )
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
