"""From `spec.source` to a provider: the API's models and plain mappings alike."""

from pathlib import Path
from typing import Any

import pytest
from lorafleet.errors import AccessDenied, PathNotAllowed
from lorafleet_operator.api.v1alpha1 import AdapterSource
from lorafleet_operator.sources.base import Source
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source

SETTINGS = SourceSettings(volume_root=Path("/volumes"))
KEYS = {"accessKeyID": b"id", "secretAccessKey": b"key"}


def opened(source: Any, secret: dict[str, bytes] | None = None) -> Source:
    return open_source(source, namespace="team-a", name="sql", settings=SETTINGS, secret=secret)


@pytest.mark.parametrize("form", [dict, AdapterSource.model_validate])
@pytest.mark.parametrize(
    ("source", "kind", "uri"),
    [
        ({"s3": {"bucket": "models", "prefix": "sql/v1"}}, "s3", "s3://models/sql/v1"),
        (
            {"http": {"url": "https://models.example/sql/?sig=x"}},
            "http",
            "https://models.example/sql",
        ),
        (
            {"persistentVolumeClaim": {"claimName": "models", "path": "sql"}},
            "persistentVolumeClaim",
            "pvc://team-a/models/sql",
        ),
        ({"gcs": {"bucket": "models", "prefix": "sql"}}, "gcs", "gs://models/sql"),
        (
            {"azureBlob": {"account": "models", "container": "adapters"}},
            "azureBlob",
            "az://models/adapters",
        ),
        ({"huggingFace": {"repo": "org/sql"}}, "huggingFace", "hf://org/sql@main"),
        (
            {"huggingFace": {"repo": "org/sql", "revision": "v1", "path": "a/b"}},
            "huggingFace",
            "hf://org/sql@v1/a/b",
        ),
        (
            {"oci": {"reference": "registry.example:5000/team/sql:v1"}},
            "oci",
            "oci://registry.example:5000/team/sql:v1",
        ),
    ],
)
def test_each_kind_opens_without_a_connection(
    form: Any, source: dict[str, Any], kind: str, uri: str
) -> None:
    found = opened(form(source))
    assert (found.kind, found.uri) == (kind, uri)


@pytest.mark.parametrize("form", [dict, AdapterSource.model_validate])
def test_a_referenced_secret_is_needed_and_its_keys_too(form: Any) -> None:
    source = form({"s3": {"bucket": "models"}, "credentialsSecretRef": {"name": "keys"}})
    with pytest.raises(AccessDenied, match=r"^Secret team-a/keys not found$"):
        opened(source)
    with pytest.raises(AccessDenied, match=r"^Secret team-a/keys lacks key secretAccessKey$"):
        opened(source, {"accessKeyID": b"id"})
    assert opened(source, KEYS).uri == "s3://models"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ({}, "none"),
        ({"ftp": {"url": "x"}}, "none"),
        ({"s3": {"bucket": "models"}, "http": {"url": "http://x.example"}}, "s3, http"),
    ],
)
def test_anything_but_one_kind_is_refused(source: dict[str, Any], found: str) -> None:
    with pytest.raises(PathNotAllowed) as caught:
        opened(source)
    assert str(caught.value) == (
        "team-a/sql: spec.source needs exactly one of s3, gcs, azureBlob, http, huggingFace, "
        f"oci, persistentVolumeClaim, push, found {found}"
    )


def test_without_a_volume_root_there_are_no_volume_sources() -> None:
    with pytest.raises(PathNotAllowed, match="has no volume root"):
        open_source(
            {"persistentVolumeClaim": {"claimName": "models"}},
            namespace="team-a",
            name="sql",
            settings=SourceSettings(),
            secret=None,
        )
