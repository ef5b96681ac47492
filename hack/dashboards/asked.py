"""What a dashboard asks of Prometheus, its variables filled in as Grafana fills them in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localprometheus import Prometheus

    from dashboards.panels import Dashboard

Choices = dict[str, list[str]]


def choices(dashboard: Dashboard, prometheus: Prometheus) -> Choices:
    """Return what each variable offers; each is asked with everything chosen in those before."""
    found: Choices = {}
    for variable in dashboard.variables:
        selector = filled_in(variable.metric, found)
        found[variable.name] = prometheus.label_values(selector, variable.label)
    return found


def filled_in(expression: str, chosen: Mapping[str, list[str]], interval: str = "8s") -> str:
    """Return the PromQL of an expression; `interval` stands for $__rate_interval."""
    text = expression.replace("$__rate_interval", interval)
    for name, values in chosen.items():
        either = "|".join(re.escape(value).replace("\\", "\\\\") for value in values)
        text = re.sub(rf"\${name}\b", lambda _, either=either: f"({either})", text)  # type: ignore[misc]
    return text
