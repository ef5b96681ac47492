"""Fills the tables of docs/resources.md from the models, so that the page cannot lie.

    python hack/resourcedocs.py [--check]

Between `<!-- table:NAME -->` and `<!-- end -->` stands what `tables()` returns under NAME.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorafleet_operator.api import conditions
from lorafleet_operator.api.conditions import OUTCOMES, ConditionType, Reason
from lorafleet_operator.api.schema import KINDS, Kind, structural_schema
from tables import table

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parent.parent / "docs" / "resources.md"
_SLOT = re.compile(r"(<!-- table:(?P<name>[\w.]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Return name -> Markdown table."""
    found = {"reasons": _reasons(), "conditions": _conditions(), "errors": _errors()}
    for kind in KINDS:
        schema = structural_schema(kind.model)["properties"]
        for part in schema.keys() & {"spec", "status"}:
            found[f"{kind.kind}.{part}"] = _fields(schema[part])
        found[f"{kind.kind}.columns"] = _columns(kind)
    return found


def filled(page: str) -> str:
    """Return `page` with every table as it should be. KeyError for a table that nobody makes."""
    made = tables()
    return _SLOT.sub(lambda slot: f"{slot[1]}{made[slot['name']]}{slot[3]}", page)


def _fields(schema: dict[str, Any]) -> str:
    rows = [
        (f"`{name}`", _type(node), _default(node, needed), node.get("description", ""))
        for name, node, needed in _walk(schema)
    ]
    return table(("field", "type", "default", "what it is"), rows)


def _walk(schema: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any], bool]]:
    for name, node in schema.get("properties", {}).items():
        yield prefix + name, node, name in schema.get("required", [])
        yield from _walk(node, f"{prefix}{name}.")
        if "properties" in node.get("items", {}):
            yield from _walk(node["items"], f"{prefix}{name}[].")


def _type(node: dict[str, Any]) -> str:
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in node:
        return ", ".join(f"`{value}`" for value in node["enum"])
    if node["type"] == "array":
        return f"list, at most {node['maxItems']}"
    if node["type"] == "object" and "additionalProperties" in node:
        return f"map, at most {node['maxProperties']}"
    return str(node.get("format") or node["type"])


def _default(node: dict[str, Any], needed: bool) -> str:
    if needed:
        return "required"
    default = node.get("default")
    return (
        ""
        if default in (None, "", {})
        else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    )


def _columns(kind: Kind) -> str:
    rows = [
        (column.name, f"`{column.path}`", column.description + (" (`-o wide`)" * column.priority))
        for column in kind.columns
    ]
    return table(("column", "from", "what it shows"), rows)


def _texts(enum: type[ConditionType] | type[Reason]) -> dict[str, str]:
    """Return member value -> the docstring below the member."""
    (definition,) = ast.parse(inspect.getsource(enum)).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for member, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            assert isinstance(member.value, ast.Constant)
            assert isinstance(text.value, ast.Constant)
            texts[str(member.value.value)] = str(text.value.value)
    return texts


def _conditions() -> str:
    rows = [(f"`{name}`", text) for name, text in _texts(ConditionType).items()]
    return table(("condition", "True means"), rows)


def _reasons() -> str:
    source = inspect.getsource(conditions.Reason)
    groups = re.findall(r'# (\w+)$|^    \w+ = "(\w+)"$', source, flags=re.MULTILINE)
    texts, rows, group = _texts(Reason), [], ""
    for heading, value in groups:
        group = heading or group
        if value:
            rows.append((group, f"`{value}`", texts[value]))
    return table(("condition", "reason", "what it means"), rows)


def _errors() -> str:
    rows = [
        (
            f"`{error.__name__}`",
            f"`{outcome.condition}`",
            f"`{outcome.reason}`",
            "when the source or the spec changes" if outcome.terminal else "with growing pauses",
        )
        for error, outcome in OUTCOMES.items()
    ]
    return table(("error", "condition", "reason", "tried again"), rows)


def main() -> int:
    """Write the page, or compare it."""
    page = PAGE.read_text()
    wanted = filled(page)
    if page == wanted:
        return 0
    if "--check" in sys.argv[1:]:
        print("docs/resources.md is stale: run hack/resourcedocs.py", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    print("wrote docs/resources.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
