"""What an OpenAPI document of our group lacks is told in one line, and nothing is told of a whole one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from lorafleet_operator.api.schema import KINDS, structural_schema
from lorafleet_operator.cluster.served import problem_of

Json = dict[str, Any]


def document(**changed: Json) -> Json:
    """Return the document of an API server that serves this version's definitions."""
    schemas = {}
    for kind in KINDS:
        schema = changed.get(kind.kind, structural_schema(kind.model))
        marks = [{"group": "lorafleet.dev", "version": "v1alpha1", "kind": kind.kind}]
        schemas[kind.kind] = {**schema, "x-kubernetes-group-version-kind": marks}
    return {"components": {"schemas": schemas}}


def adapter_without(*path: str) -> Json:
    (kind,) = (each for each in KINDS if each.kind == "LoRAAdapter")
    schema = copy.deepcopy(structural_schema(kind.model))
    node = schema
    for name in path[:-1]:
        node = node["items"] if name == "[]" else node["properties"][name]
    del node["properties"][path[-1]]
    return schema


def test_what_this_version_serves_is_enough_for_it() -> None:
    assert problem_of(document()) == ""


def test_more_than_is_needed_is_enough_too() -> None:
    made = document()
    made["components"]["schemas"]["EnginePool"]["properties"]["spec"]["properties"]["later"] = {}
    assert problem_of(made) == ""


def test_a_definition_without_a_schema_of_its_own_takes_everything() -> None:
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert problem_of(document(AdapterGrant=loose)) == ""


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (("status",), "has no status: "),
        (("spec", "rollout"), "has no spec.rollout: "),
        (("spec", "placement", "idleSeconds"), "has no spec.placement.idleSeconds: "),
        (("status", "engines", "[]", "tier"), "has no status.engines[].tier: "),
    ],
)
def test_a_field_that_is_missing_is_named_by_its_path(path: tuple[str, ...], named: str) -> None:
    said = problem_of(document(LoRAAdapter=adapter_without(*path)))
    assert said.startswith(
        "the CustomResourceDefinition of LoRAAdapter is older than this operator"
    )
    assert named in said
    assert "\n" not in said


def test_of_many_missing_fields_three_are_named() -> None:
    bare = {"type": "object", "properties": {"spec": {"type": "object"}}}
    said = problem_of(document(LoRAAdapter=bare))
    assert said.count("spec.") == 3
    assert " more: upgrade" in said


def test_kinds_that_are_not_there_are_named() -> None:
    made = document()
    del made["components"]["schemas"]["AdapterGrant"]
    assert problem_of(made).startswith(
        "the API server has no AdapterGrant of lorafleet.dev/v1alpha1"
    )
    assert "no LoRAAdapter and no EnginePool and no AdapterGrant" in problem_of({})
