"""Dashboards as Grafana reads them (schema 42, that of Grafana 12.2 and 13; it migrates older ones)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dashboards.panels import Dashboard, Panel, Query, Variable

SCHEMA_VERSION = 42
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HEIGHTS = {"stat": 4, "timeseries": 8, "table": 8}
_COLUMNS = 24
_FLEET = "/d/lorafleet-fleet"
_KEPT = "${datasource:queryparam}&${namespace:queryparam}&${pool:queryparam}&${__url_time_range}"


def as_json(dashboard: Dashboard, others: tuple[Dashboard, ...] = ()) -> dict[str, Any]:
    """Return the dashboard for import; `others` are linked at its top."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["lorafleet"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "weekStart": "",
        "annotations": {"list": []},
        "links": [_link(each) for each in others],
        "templating": {"list": [_DATASOURCE, *map(_variable, dashboard.variables)]},
        "panels": _panels(dashboard),
    }


def _link(other: Dashboard) -> dict[str, Any]:
    return {
        "type": "link",
        "title": other.title,
        "url": f"/d/{other.uid}",
        "icon": "dashboard",
        "tooltip": other.description,
        "targetBlank": False,
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "tags": [],
    }


_DATASOURCE = {
    "name": "datasource",
    "label": "Prometheus",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "hide": 0,
    "includeAll": False,
    "multi": False,
    "options": [],
    "refresh": 1,
    "regex": "",
}


def _variable(variable: Variable) -> dict[str, Any]:
    query = f"label_values({variable.metric},{variable.label})"
    return {
        "name": variable.name,
        "description": variable.description,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "variable"},
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "includeAll": True,
        "multi": True,
        "options": [],
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def _panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    top = 0
    for row in dashboard.rows:
        place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
        number = len(found) + 1
        header = {"id": number, "type": "row", "title": row.title, "gridPos": place}
        found.append({**header, "collapsed": False, "panels": []})
        top += 1
        left = height = 0
        for panel in row.panels:
            if left + panel.width > _COLUMNS:
                top, left, height = top + height, 0, 0
            high = _HEIGHTS[panel.kind]
            place = {"h": high, "w": panel.width, "x": left, "y": top}
            found.append({"id": len(found) + 1, "gridPos": place, **_panel(panel)})
            left, height = left + panel.width, max(height, high)
        top += height
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": value} for value, colour in panel.thresholds]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "min": 0,
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "custom": _custom(panel),
        "links": _data_links(panel),
    }
    if panel.nothing:
        defaults["noValue"] = panel.nothing
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [_target(panel, query, index) for index, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "transformations": _transformations(panel),
    }


def _target(panel: Panel, query: Query, index: int) -> dict[str, Any]:
    instant = panel.kind != "timeseries"
    return {
        "refId": chr(ord("A") + index),
        "datasource": _SOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": "table" if panel.kind == "table" else "time_series",
    }


def _custom(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {"align": "auto", "filterable": True} if panel.kind == "table" else {}
    stack = {"group": "A", "mode": "normal" if panel.stacked else "none"}
    lines = "dashed" if panel.thresholds else "off"
    return {
        "drawStyle": "line",
        "fillOpacity": 25 if panel.stacked else 0,
        "lineWidth": 1,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": stack,
        "thresholdsStyle": {"mode": lines},
    }


def _data_links(panel: Panel) -> list[dict[str, Any]]:
    """Return where a click on an adapter, or on a series of one, leads."""
    if "name" in panel.columns:
        labels = ("${__data.fields.namespace}", "${__data.fields.name}")
    elif any("{{namespace}}/{{name}}" in query.legend for query in panel.queries):
        labels = ("${__field.labels.namespace}", "${__field.labels.name}")
    else:
        return []
    tenant, adapter = labels
    url = f"{_FLEET}?{_KEPT}&var-tenant={tenant}&var-adapter={adapter}"
    return [{"title": "This adapter", "url": url, "targetBlank": False}]


def _transformations(panel: Panel) -> list[dict[str, Any]]:
    if panel.kind != "table":
        return []
    order = {name: index for index, name in enumerate((*panel.columns, "Value"))}
    options = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": {}}
    return [{"id": "organize", "options": options}]


_OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
        "wideLayout": True,
    },
    "timeseries": {
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc", "hideZeros": False},
    },
    "table": {"showHeader": True, "cellHeight": "sm", "sortBy": []},
}
