"""The generator: structural schemas only, and crds/ is what the models say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet_operator.api.schema import (
    KINDS,
    Kind,
    check_crds,
    crd,
    structural_schema,
    write_crds,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
FORBIDDEN = {"$ref", "$defs", "title", "oneOf", "allOf", "propertyNames", "const", "examples"}
KIB = 1024
OBSERVED = [kind for kind in KINDS if kind.observed]


def schemas(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Walk schema nodes; the names of properties are no keywords."""
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from schemas(child, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            yield from schemas(node[keyword], f"{path}.{keyword}")


def largest(node: dict[str, Any]) -> int:
    """Return a bound on the bytes of JSON that `node` admits (4 bytes a character)."""
    match node.get("type"):
        case "object" if "properties" in node:
            return sum(len(name) + 4 + largest(sub) for name, sub in node["properties"].items())
        case "object":
            return int(node["maxProperties"]) * (320 + largest(node["additionalProperties"]))
        case "array":
            return int(node["maxItems"]) * largest(node["items"])
        case "string" if "enum" in node or node.get("format") == "date-time":
            return 64
        case "string" if node.get("pattern", "").startswith(("^[a-z", "^([A-Z", r"^\*$|^[a-z")):
            return int(node["maxLength"])  # names: ASCII alone
        case "string":
            return 4 * int(node["maxLength"])
        case _:
            return 128


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_schema_has_only_what_a_structural_schema_allows(kind: Kind) -> None:
    for path, node in schemas(structural_schema(kind.model)):
        assert not FORBIDDEN & set(node), path
        assert node.get("additionalProperties") is not False, path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert "default" not in node or node["default"] is not None, path
        assert {"type": "null"} not in node.get("anyOf", []), path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_field_is_described(kind: Kind) -> None:
    for path, node in schemas(structural_schema(kind.model)):
        if path.endswith((".metadata", ".items", ".additionalProperties")):
            continue
        assert node.get("description"), path


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_spec_is_bounded_below_64_kib_and_that_of_a_pool_below_256(kind: Kind) -> None:
    limit = 256 * KIB if kind.kind == "EnginePool" else 64 * KIB  # there are few pools
    assert largest(structural_schema(kind.model)["properties"]["spec"]) < limit


@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.kind)
def test_a_status_is_bounded_below_what_the_api_server_stores(kind: Kind) -> None:
    assert largest(structural_schema(kind.model)["properties"]["status"]) < 1024 * 1024


@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.kind)
def test_a_status_has_no_defaults_and_prunes_what_it_does_not_know(kind: Kind) -> None:
    for path, node in schemas(structural_schema(kind.model)["properties"]["status"]):
        assert "default" not in node, path
        assert "x-kubernetes-preserve-unknown-fields" not in node, path


def test_crds_in_the_repository_are_what_the_models_say() -> None:
    assert check_crds(ROOT / "crds") == []


def test_check_names_missing_stale_and_foreign_files(tmp_path: Path) -> None:
    assert len(write_crds(tmp_path)) == len(KINDS)
    assert write_crds(tmp_path) == []
    first, second, *_ = (tmp_path / kind.filename for kind in KINDS)
    first.unlink()
    second.write_text("x")
    (tmp_path / "old.yaml").write_text("x")
    problems = check_crds(tmp_path)
    assert [line.split(" is ")[1].split(":")[0] for line in problems] == [
        "missing",
        "stale",
        "not a CRD of this version",
    ]


def test_names_of_the_kinds() -> None:
    shorts = {crd(kind)["metadata"]["name"]: crd(kind)["spec"]["names"] for kind in KINDS}
    assert shorts["loraadapters.lorafleet.dev"]["shortNames"] == ["lora"]
    assert shorts["adaptergrants.lorafleet.dev"]["shortNames"] == ["lgrant"]
    assert shorts["enginepools.lorafleet.dev"]["shortNames"] == ["lpool"]
