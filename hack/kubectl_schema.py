"""Writes docs/kubectl.schema.json from the classes of kubectl/views.py: what `-o json` gives.

python hack/kubectl_schema.py [--check]
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from lorafleet_operator.kubectl import views

PAGE = Path(__file__).resolve().parent.parent / "docs" / "kubectl.schema.json"
KINDS = (views.AdapterList, views.Top, views.History, views.Rollback, views.Push)
_PLAIN = {str: "string", int: "integer", bool: "boolean", types.NoneType: "null"}
_REMARK = re.compile(r"^    (\w+): .*?  # (.*)$", re.MULTILINE)


def schema() -> dict[str, Any]:
    """Return one schema for all documents; later versions may add fields."""
    definitions: dict[str, Any] = {}
    for kind in KINDS:
        _define(kind, definitions)
        found = definitions[kind.__name__]["properties"]
        found["kind"], found["apiVersion"] = {"const": kind.__name__}, {"const": views.VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What kubectl lora gives with -o json",
        "oneOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in KINDS],
        "$defs": definitions,
    }


def _define(kind: type, definitions: dict[str, Any]) -> None:
    """Add a class and those that its fields name."""
    remarks = dict(_REMARK.findall(inspect.getsource(kind)))
    hints = get_type_hints(kind)
    properties = {name: _of(hint, definitions) for name, hint in hints.items()}
    for name, remark in remarks.items():
        properties[name]["description"] = remark
    definitions[kind.__name__] = {
        "description": inspect.getdoc(kind),
        "type": "object",
        "properties": properties,
        "required": list(hints),
    }


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if is_typeddict(hint):
        if hint.__name__ not in definitions:
            _define(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if get_origin(hint) is list:
        return {"type": "array", "items": _of(get_args(hint)[0], definitions)}
    if get_origin(hint) is types.UnionType:
        return {"type": [_PLAIN[each] for each in get_args(hint)]}
    return {"type": _PLAIN[hint]}


def main() -> int:
    text = json.dumps(schema(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() == text:
            return 0
        print(f"{PAGE} is stale: run hack/kubectl_schema.py", file=sys.stderr)
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
