"""Draws a dashboard from answers of a Prometheus: panels, titles, units, legends and thresholds as Grafana's."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

from dashboards.asked import choices, filled_in
from dashboards.grafana import as_json
from dashboards.units import legend, written

if TYPE_CHECKING:
    from pathlib import Path

    from localprometheus import Prometheus, Series

    from dashboards.panels import Dashboard, Panel

_COLUMNS, _WIDTH, _CELL = 24, 16.0, 0.34  # columns; inches; inches of a row
_GROUND, _PANEL, _INK, _FAINT = "#f4f5f5", "#ffffff", "#24292e", "#8e9297"
_CURVES = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#37872d", "#8ab8ff")
_STATES = {"green": "#37872d", "orange": "#ff780a", "red": "#e02f44"}
_ROWS_SHOWN = 9


def draw(board: Dashboard, prometheus: Prometheus, start: float, end: float, path: Path) -> None:
    """Write the picture of what `board` shows of the time between two moments (seconds since 1970)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"font.size": 7.5, "text.color": _INK, "axes.edgecolor": "#d8d9da"})
    cells = as_json(board)["panels"]
    rows = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in cells) + 2
    figure = pyplot.figure(figsize=(_WIDTH, rows * _CELL), facecolor=_GROUND)
    figure.text(0.01, 1 - 1.1 / rows, board.title, fontsize=14, va="center")
    figure.text(0.99, 1 - 1.1 / rows, _when(start, end), ha="right", va="center", color=_FAINT)
    chosen = choices(board, prometheus)
    panels = iter(board.panels)
    for cell in cells:
        place = _place(cell["gridPos"], rows)
        if cell["type"] == "row":
            middle = place[1] + place[3] / 2
            figure.text(0.01, middle, f"▾ {cell['title']}", fontsize=10, va="center")
            continue
        panel = next(panels)
        step = max(1.0, (end - start) / 300)
        found = [
            prometheus.over(filled_in(each.expr, chosen), start, end, step)
            if panel.kind == "timeseries"
            else prometheus.now(filled_in(each.expr, chosen), end)
            for each in panel.queries
        ]
        _one(figure, place, panel, found, (start, end), rows)
    figure.savefig(path, dpi=100, facecolor=_GROUND)
    pyplot.close(figure)


def _when(start: float, end: float) -> str:
    return f"{end - start:.0f} s, from a Prometheus; drawn by hack/dashboards/render"


def _place(grid: dict[str, int], rows: int) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height as shares of the picture."""
    top = 2 + grid["y"]
    return (
        grid["x"] / _COLUMNS,
        1 - (top + grid["h"]) / rows,
        grid["w"] / _COLUMNS,
        grid["h"] / rows,
    )


def _one(
    figure: Any,
    place: tuple[float, float, float, float],
    panel: Panel,
    found: list[list[Series]],
    span: tuple[float, float],
    rows: int,
) -> None:
    left, bottom, width, height = place
    gap, row = 0.004, 1 / rows
    box = figure.add_axes(
        (left + gap, bottom + row * 0.15, width - 2 * gap, height - row * 0.3), facecolor=_PANEL
    )
    box.set_xticks([])
    box.set_yticks([])
    figure.text(
        left + 3 * gap, bottom + height - row * 0.75, panel.title, va="center", weight="bold"
    )
    if panel.kind == "stat":
        _numbers(box, panel, found)
    elif not any(found):
        box.text(
            0.5,
            0.45,
            panel.nothing or "No data",
            ha="center",
            va="center",
            color=_FAINT,
            fontsize=10,
        )
    elif panel.kind == "table":
        _table(box, panel, found[0])
    else:
        room = (left + 0.042, bottom + row * 2.0, width - 0.055, height - row * 3.4)
        axes = figure.add_axes(room, facecolor=_PANEL)
        _curves(axes, panel, found, span)
        columns = 3 if panel.width <= 8 else 5
        axes.legend(
            *_first(axes, 2 * columns),
            loc="upper left",
            bbox_to_anchor=(left + 2 * gap, bottom + row * 1.5),
            bbox_transform=figure.transFigure,
            ncols=columns,
            frameon=False,
            fontsize=6.5,
            handlelength=1.2,
            columnspacing=1.2,
        )


def _numbers(box: Any, panel: Panel, found: list[list[Series]]) -> None:
    shown = [
        (legend(query.legend, each.labels) if query.legend else "", each.values[-1])
        for query, answer in zip(panel.queries, found, strict=True)
        for each in answer
    ]
    for index, (name, value) in enumerate(shown):
        at = (index + 0.5) / len(shown)
        text = "No data" if math.isnan(value) else written(value, panel.unit)
        box.text(at, 0.42, text, ha="center", va="center", fontsize=19, color=_state(panel, value))
        box.text(at, 0.12, name, ha="center", va="center", color=_FAINT)
    if not shown:
        box.text(0.5, 0.42, "No data", ha="center", va="center", color=_FAINT, fontsize=12)


def _state(panel: Panel, value: float) -> str:
    reached = [colour for least, colour in panel.thresholds if value >= least]
    return _STATES[reached[-1] if reached else "green"]


def _table(box: Any, panel: Panel, found: list[Series]) -> None:
    rows = sorted(
        ([each.labels.get(name, "") for name in panel.columns], each.values[0]) for each in found
    )
    lines = [[*panel.columns, "Value"], *([*cells, written(v, panel.unit)] for cells, v in rows)]
    for index, line in enumerate(lines[: _ROWS_SHOWN + 1]):
        for column, text in enumerate(line):
            box.text(
                0.03 + column * 0.95 / len(line),
                0.82 - index * 0.085,
                textwrap.shorten(text, 34),
                va="center",
                color=_FAINT if index == 0 else _INK,
            )
    if len(rows) > _ROWS_SHOWN:
        box.text(0.03, 0.03, f"and {len(rows) - _ROWS_SHOWN} more", color=_FAINT, va="center")


def _curves(axes: Any, panel: Panel, found: list[list[Series]], span: tuple[float, float]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

    curves = [
        (legend(query.legend, each.labels), each)
        for query, answer in zip(panel.queries, found, strict=True)
        for each in answer
    ]
    below: dict[float, float] = {}
    for index, (name, series) in enumerate(curves):
        colour = _CURVES[index % len(_CURVES)]
        at = [time - span[0] for time in series.times]
        low = [below.get(time, 0.0) if panel.stacked else 0.0 for time in series.times]
        high = [base + value for base, value in zip(low, series.values, strict=True)]
        axes.plot(at, high, color=colour, linewidth=1.2, label=name)
        if panel.stacked:
            axes.fill_between(at, low, high, color=colour, alpha=0.3, linewidth=0)
            below.update(zip(series.times, high, strict=True))
    highest = max((value for _, each in curves for value in each.values if value > 0), default=0)
    # A curve that never moves has no margin of its own.
    axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], 1.08 * highest) if highest else 1)
    top = axes.get_ylim()[1]
    for least, colour in panel.thresholds:
        if least <= top:
            axes.axhline(least, color=_STATES[colour], linestyle="--", linewidth=0.8)
    axes.set_xlim(0, span[1] - span[0])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:.0f} s"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, panel.unit)))
    binary = panel.unit in ("bytes", "Bps") and highest >= 1
    step = 2.0 ** math.ceil(math.log2(top / 5)) if binary else 0.0
    axes.yaxis.set_major_locator(MultipleLocator(step) if binary else MaxNLocator(5))
    axes.grid(visible=True, color="#e9edf2", linewidth=0.6)
    axes.tick_params(colors=_FAINT, length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _first(axes: Any, most: int) -> tuple[list[Any], list[str]]:
    handles, names = axes.get_legend_handles_labels()
    if len(names) > most:
        names[most - 1] = f"and {len(names) - most + 1} more"
    return handles[:most], [textwrap.shorten(name, 40) for name in names[:most]]
