"""Makes the chart's values.schema.json and docs/values.md from the comments of its values.yaml.

    python hack/chart_values.py [--check]

The comment lines right above a key say what it is for; a line `# @schema {...}` adds to the schema
what the default does not tell. A map that has keys there may have no others; an empty one may, unless
its schema says more. `settings: true` stands for the operator's settings.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from lorafleet_operator.settings import OperatorSettings
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parent.parent
VALUES = REPOSITORY / "charts" / "lorafleet" / "values.yaml"
SCHEMA = VALUES.with_name("values.schema.json")
PAGE = REPOSITORY / "docs" / "values.md"
_MARK: Final = "@schema "
_TYPES: Final = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
_BY_THE_CHART: Final = {
    "namespaces", "tls_dir", "tls_server_name", "volume_root", "listen", "shards",
    "lease_namespace", "lease_name", "identity", "crash_at",
    "push_listen", "push_dir", "push_tls_dir", "push_audience", "push_bytes",
    "push_namespace_bytes", "push_revisions",
}  # fmt: skip
"""Settings that follow from other values, or are for tests."""

_TEXT = """# Values of the chart

Written by `python hack/chart_values.py` from `charts/lorafleet/values.yaml`; do not edit. Helm refuses
values that are not here, or of another type, by the schema that is made of the same file.

{values}
## Settings

What `settings` may hold; each becomes the variable `LORAFLEET_<NAME>` of the operator.

{settings}"""


@dataclass(frozen=True)
class Value:
    """One value: where it stands, its default, what the comment says of it and adds to the schema."""

    path: tuple[str, ...]
    default: Any
    description: str
    extra: dict[str, Any]

    @property
    def documented_whole(self) -> bool:
        """Whether it is one value and not just a group of others."""
        return not isinstance(self.default, dict) or not self.default or bool(self.extra)


class Undocumented(ValueError):
    """Raised for a value without a comment; the text names it."""


def values() -> list[Value]:
    """Return every value and group of values.yaml, in its order. Raises Undocumented."""
    text = VALUES.read_text()
    found = list(_walk(yaml.compose(text), yaml.safe_load(text), text.splitlines(), ()))
    for value in found:
        if value.documented_whole and not value.description:
            raise Undocumented(f"values.yaml: {'.'.join(value.path)} has no comment")
    return found


def _walk(
    node: Any, loaded: Any, lines: list[str], path: tuple[str, ...], group: str = ""
) -> Iterator[Value]:
    """Yield the values of a map; one without a comment has that of its group."""
    for key, child in node.value:
        default = loaded[key.value]
        own, extra = _comment(lines, key.start_mark.line)
        value = Value((*path, key.value), default, own or group, extra)
        yield value
        if isinstance(default, dict) and not extra:
            yield from _walk(child, default, lines, value.path, own)


def _comment(lines: list[str], line: int) -> tuple[str, dict[str, Any]]:
    """Return what the comment right above a line says, and what it adds to the schema."""
    above: list[str] = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        above.insert(0, lines[line].strip().removeprefix("#").strip())
    marks = [each.removeprefix(_MARK) for each in above if each.startswith(_MARK)]
    words = " ".join(each for each in above if not each.startswith(_MARK))
    return words, {key: it for mark in marks for key, it in yaml.safe_load(mark).items()}


def schema() -> dict[str, Any]:
    """Return the JSON schema of the values."""
    root: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart lorafleet",
        **_group(),
    }
    # Helm adds it for charts that others depend on.
    root["properties"]["global"] = {"type": "object"}
    for value in values():
        parent = root
        for name in value.path[:-1]:
            parent = parent["properties"][name]
        parent["properties"][value.path[-1]] = _node(value)
    return root


def _group() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _node(value: Value) -> dict[str, Any]:
    if not value.documented_whole:
        return _group()
    extra = dict(value.extra)
    if extra.pop("settings", False):
        extra |= {"additionalProperties": False, "properties": _settings_schema()}
    return {"type": _TYPES[type(value.default)], "description": value.description, **extra}


def _settings_schema() -> dict[str, Any]:
    kind = {"type": ["string", "number", "boolean"]}
    return {name: {**kind, "description": text} for name, text, _ in settings()}


def settings() -> list[tuple[str, str, str]]:
    """Return (name, description, default) of the settings that are the user's to make."""
    docs = _texts_of_settings()
    return [
        (each.name.upper(), docs[each.name], str(each.default))
        for each in fields(OperatorSettings)
        if each.name not in _BY_THE_CHART
    ]


def _texts_of_settings() -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(OperatorSettings)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def page() -> str:
    """Return docs/values.md."""
    rows = [
        (".".join(value.path), _shown(value.default), value.description)
        for value in values()
        if value.documented_whole
    ]
    options = [(name, _shown(default), text) for name, text, default in settings()]
    return _TEXT.format(values=_table("value", rows), settings=_table("name", options))


def _shown(default: Any) -> str:
    text = default if isinstance(default, str) else json.dumps(default)
    return f"`{text}`" if text else ""


def _table(first: str, rows: list[tuple[str, str, str]]) -> str:
    named = [(f"`{name}`", default, text) for name, default, text in rows]
    return table((first, "default", "what it is for"), named)


def main() -> int:
    """Write both files, or with --check say whether they are current."""
    try:
        made = {SCHEMA: json.dumps(schema(), indent=1) + "\n", PAGE: page()}
    except Undocumented as error:
        print(error, file=sys.stderr)
        return 1
    stale = [path for path, text in made.items() if not path.exists() or path.read_text() != text]
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            name = path.relative_to(REPOSITORY)
            print(f"{name} is stale: run .venv/bin/python hack/chart_values.py", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
