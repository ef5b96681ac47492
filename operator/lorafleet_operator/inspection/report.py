"""How a verdict is told: as JSON for programs, as a text for people."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lorafleet.dtypes import TORCH_NAMES
from lorafleet.quoting import shown

from lorafleet_operator.inspection.offline_profile import MAX_LORA_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lorafleet.errors import LorafleetError

    from lorafleet_operator.inspection.numbers import ModuleNumbers


MAX_ERROR = 1000
"""Characters of a refusal's line."""
NO_ENGINE = "not given"
"""Label of the report of an adapter that no engine's profile was held against."""
IDENTITY = "AdapterIsIdentity"
"""The warning that an adapter changes nothing; the condition of that name in a cluster."""

_EXPLAINED = {
    IDENTITY: f"{IDENTITY}: every update is zero, the engine would answer as the base model"
}


@dataclass(frozen=True)
class Contents:
    """What the source holds, as far as it was read; `rank` 0 is not known."""

    uri: str
    revision: str
    tensors: int
    dtypes: Sequence[str]  # safetensors names
    base_model: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Report:
    """One adapter and one engine: what it computes there, or why it is refused."""

    normalized: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    modules: Mapping[str, ModuleNumbers] = field(default_factory=dict)
    error: str | None = None
    reason: str = ""
    contents: Contents | None = None

    @classmethod
    def refused(cls, error: LorafleetError, contents: Contents | None = None) -> Report:
        """Return the report of a refusal, its message in one line."""
        text = shown(" ".join(str(error).split()), MAX_ERROR)
        return cls(error=text, reason=error.reason, contents=contents)

    @property
    def loads(self) -> bool:
        """Whether the engine would take the adapter."""
        return self.error is None

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of docs/inspect.md."""
        if not self.loads:
            return {"loads": False, "error": self.error, "reason": self.reason}
        return {
            "loads": True,
            "error": None,
            "normalized": list(self.normalized),
            "warnings": list(self.warnings),
            "modules": dict(self.modules),
        }


def merged_json(reports: Mapping[str, Report]) -> dict[str, Any]:
    """Return the JSON of several engines: the first refusal, or the first report.

    The adapter loads if every one of the engines takes it; `engines` tells of each.
    """
    told = next((each for each in reports.values() if not each.loads), None)
    told = told or next(iter(reports.values()))
    if len(reports) == 1:
        return told.as_json()
    engines = {
        label: {"loads": each.loads, "error": each.error, "reason": each.reason or None}
        for label, each in reports.items()
    }
    return {**told.as_json(), "engines": engines}


def as_text(adapter: str, reports: Mapping[str, Report]) -> str:
    """Return the table for people; the engines' labels are the keys of `reports`."""
    told = next((each for each in reports.values() if each.loads), None)
    told = told or next(iter(reports.values()))
    lines = [f"adapter   {shown(adapter)}", *_contents(told.contents)]
    for label, report in reports.items():
        nobody = label == NO_ENGINE and not report.loads  # the adapter is wrong for any engine
        lines.append(_verdict(report) if nobody else f"engine    {label}: {_verdict(report)}")
    lines += [f"rewrite   {line}" for line in told.normalized]
    lines += [f"warning   {_EXPLAINED.get(line, line)}" for line in told.warnings]
    if told.modules:
        lines += ["", *_table(told.modules)]
    return "\n".join(lines)


def _contents(contents: Contents | None) -> list[str]:
    if contents is None:
        return []
    dtypes = ", ".join(TORCH_NAMES.get(name, name) for name in contents.dtypes)
    base = shown(contents.base_model) or "(not named in adapter_config.json)"
    lines = [
        f"source    {contents.uri} ({contents.revision})",
        f"tensors   {contents.tensors} of {dtypes or 'no type'}",
        f"trained   for {base}",
    ]
    if contents.rank:
        least = next((rank for rank in MAX_LORA_RANKS if rank >= contents.rank), None)
        needs = f"max_lora_rank {least} or more" if least else "more than any vLLM accepts"
        lines.append(f"rank      {contents.rank}, an engine needs {needs}")
    return lines


def _verdict(report: Report) -> str:
    return "loads" if report.loads else f"refused ({report.reason}): {report.error}"


def _table(modules: Mapping[str, ModuleNumbers]) -> list[str]:
    """Return one row for all layers and experts that agree in rank, scaling and shape."""
    groups: dict[tuple[str, ...], list[float]] = {}
    for name, found in modules.items():
        key = (
            re.sub(r"(?<=\.)\d+(?=\.)", "*", shown(name)),
            str(found["rank"]),
            f"{found['scaling']:g}",
            "x".join(map(str, found["shape"])),
        )
        groups.setdefault(key, []).append(found["fro"])
    rows: list[tuple[str, ...]]
    rows = [("module", "rank", "scaling", "out x in", "count", "norm of the update")]
    rows += [(*key, str(len(norms)), _range(norms)) for key, norms in groups.items()]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_row(row, widths) for row in rows]


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _row(cells: Iterable[str], widths: Sequence[int]) -> str:
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()
