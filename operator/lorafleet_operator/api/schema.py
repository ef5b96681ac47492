"""Models -> structural schema -> CustomResourceDefinition documents.

Pydantic's JSON schema is not a structural schema: references are inlined here, null branches,
titles, null defaults and `additionalProperties: false` dropped (the API server prunes unknown
fields). Nothing in crds/ is written by hand: `write_crds` writes it and `check_crds` compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from . import names
from .v1alpha1 import AdapterGrant, EnginePool, LoRAAdapter

if TYPE_CHECKING:
    from pathlib import Path

    from .meta import ApiModel

Json = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column that `kubectl get` prints."""

    name: str
    path: str
    description: str
    type: str = "string"
    priority: int = 0  # 1: only with -o wide

    def schema(self) -> Json:
        """Return the entry for `additionalPrinterColumns`."""
        entry: Json = {
            "name": self.name,
            "type": self.type,
            "jsonPath": self.path,
            "description": self.description,
        }
        return {**entry, "priority": self.priority} if self.priority else entry


@dataclass(frozen=True)
class Kind:
    """One custom resource: its model and how it appears in the API."""

    model: type[ApiModel]
    kind: str
    plural: str
    short: str
    columns: tuple[Column, ...]

    @property
    def observed(self) -> bool:
        """Whether it has a status."""
        return "status" in self.model.model_fields

    @property
    def filename(self) -> str:
        """Return the name of its file in crds/."""
        return f"{names.GROUP}_{self.plural}.yaml"


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


KINDS: Final = (
    Kind(
        LoRAAdapter,
        names.ADAPTER_KIND,
        names.ADAPTER_PLURAL,
        names.ADAPTER_SHORT,
        (
            Column("Base Model", ".spec.baseModel", "Base model of the adapter"),
            Column("Engines", ".status.enginesSummary", "Engines that are ready / wanted"),
            Column("Ready", _condition("Ready", "status"), "Whether every wanted engine serves it"),
            Column("Reason", _condition("Ready", "reason"), "Why it is or is not ready"),
            Column("Tier", ".status.tierSummary", "Where the engines' copies are"),
            Column("Age", ".metadata.creationTimestamp", "Time since creation", "date"),
            Column("Residency", ".status.residency", "What engines keep ready of it", priority=1),
            Column("Served Name", ".status.servedName", "What clients send as model", priority=1),
            Column("Step", ".status.stepSummary", "Trainer's step that engines serve", priority=1),
            Column("Digest", ".status.digest", "Revision that should be served", priority=1),
            Column("Message", _condition("Ready", "message"), "Why, for people", priority=1),
        ),
    ),
    Kind(
        EnginePool,
        names.POOL_KIND,
        names.POOL_PLURAL,
        names.POOL_SHORT,
        (
            Column("Base Model", ".spec.baseModel", "Base model of the engines"),
            Column("Engines", ".status.enginesSummary", "Engines that are ready / found"),
            Column("Ready", _condition("EnginesReady", "status"), "Whether all engines are ready"),
            Column("Plugin", _condition("PluginActive", "status"), "Whether all run the plugin"),
            Column("Age", ".metadata.creationTimestamp", "Time since creation", "date"),
            Column("Message", _condition("EnginesReady", "message"), "Why, for people", priority=1),
        ),
    ),
    Kind(
        AdapterGrant,
        names.GRANT_KIND,
        names.GRANT_PLURAL,
        names.GRANT_SHORT,
        (
            Column("From", ".spec.from[*].namespace", "Namespaces that may use it"),
            Column("Kinds", ".spec.to[*].kind", "What they may use"),
            Column("Age", ".metadata.creationTimestamp", "Time since creation", "date"),
        ),
    ),
)


def structural_schema(model: type[ApiModel]) -> Json:
    """Return the OpenAPI v3 schema of a resource, in the form that CRDs want."""
    raw = model.model_json_schema(by_alias=True)
    schema: Json = _structural(raw, raw.get("$defs", {}))
    properties = schema["properties"]
    properties["metadata"] = {"type": "object"}
    if "status" in properties:
        _drop_defaults(properties["status"])
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": "Version of this object's schema."},
        "kind": {"type": "string", "description": "Kind of this object."},
        **properties,
    }
    return schema


def crd(kind: Kind) -> Json:
    """Return the CustomResourceDefinition of `kind`."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [kind.short],
                "categories": ["lorafleet"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if kind.observed else {}),
                    "additionalPrinterColumns": [column.schema() for column in kind.columns],
                    "schema": {"openAPIV3Schema": structural_schema(kind.model)},
                }
            ],
        },
    }


def crd_texts() -> dict[str, str]:
    """Return file name -> YAML text of every CRD."""
    head = "# Written by `lorafleet-operator crds`; do not edit.\n"
    return {
        kind.filename: head
        + yaml.safe_dump(crd(kind), sort_keys=False, allow_unicode=True, width=100)
        for kind in KINDS
    }


def write_crds(directory: Path) -> list[Path]:
    """Write the CRDs to `directory` and return the files whose text changed."""
    directory.mkdir(parents=True, exist_ok=True)
    changed = []
    for filename, text in crd_texts().items():
        path = directory / filename
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed


def check_crds(directory: Path) -> list[str]:
    """Return one line for each file in `directory` that is missing, stale or not ours."""
    problems = []
    texts = crd_texts()
    for filename, text in texts.items():
        path = directory / filename
        if not path.exists():
            problems.append(f"{path} is missing: run lorafleet-operator crds")
        elif path.read_text() != text:
            problems.append(f"{path} is stale: run lorafleet-operator crds")
    problems.extend(
        f"{path} is not a CRD of this version: remove it"
        for path in sorted(directory.glob("*.yaml"))
        if path.name not in texts
    )
    return problems


_HEAD: Final = ("description", "type", "format", "default", "enum")
"""Keywords in the order in which a person reads them; the others follow by name."""


def _structural(node: Any, definitions: Json) -> Any:
    """Return `node` with references inlined and everything dropped that CRDs do not allow."""
    if isinstance(node, list):
        return [_structural(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    node = dict(node)
    node.pop("$defs", None)
    if "$ref" in node:
        target = definitions[node.pop("$ref").rsplit("/", 1)[-1]]
        return _structural({**target, **node}, definitions)
    branches = [branch for branch in node.pop("anyOf", []) if branch != {"type": "null"}]
    if "x-kubernetes-int-or-string" in node:
        branches = []  # the keyword says it all
    if len(branches) == 1:
        return _structural({**branches[0], **node}, definitions)
    if "title" in node and isinstance(node["title"], str):
        del node["title"]
    if node.get("default", ...) is None:
        del node["default"]
    if node.get("additionalProperties") is False:
        del node["additionalProperties"]
    node.pop("propertyNames", None)
    if isinstance(node.get("description"), str):
        node["description"] = " ".join(node["description"].split())
    properties = node.pop("properties", None)
    head = [key for key in _HEAD if key in node]
    tail = sorted(key for key in node if key not in head)
    result: Json = {key: _structural(node[key], definitions) for key in [*head, *tail]}
    if branches:
        result["anyOf"] = _structural(branches, definitions)
    if properties is not None:
        result["properties"] = {
            name: _structural(value, definitions) for name, value in properties.items()
        }
    return result


def _drop_defaults(node: Any) -> None:
    """Remove defaults in place: only what people write has defaults, a status is observed."""
    if isinstance(node, dict):
        node.pop("default", None)
        for value in node.values():
            _drop_defaults(value)
    elif isinstance(node, list):
        for value in node:
            _drop_defaults(value)
