"""From what a person types to a source, and what of the environment is used for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import AccessDenied, PathNotAllowed
from lorafleet_operator.inspection.addresses import open_address, without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "canary"}


@pytest.mark.parametrize(
    ("address", "kind", "uri"),
    [
        ("runs/step-10", "path", "runs/step-10"),
        ("file:///data/a%20b", "path", "/data/a b"),
        ("FILE://localhost/data/%23x/", "path", "/data/#x"),
        ("https://models.example/sql/?sig=x", "http", "https://models.example/sql"),
        ("s3://models/team/sql/", "s3", "s3://models/team/sql"),
        ("s3://models", "s3", "s3://models"),
        ("hf://org/sql", "huggingFace", "hf://org/sql@main"),
        ("hf://org/sql@v1/step-10/", "huggingFace", "hf://org/sql@v1/step-10"),
        ("hf://org/sql@refs%2Fpr%2F1", "huggingFace", "hf://org/sql@refs/pr/1"),
        ("gs://models/team/sql", "gcs", "gs://models/team/sql"),
        ("az://account/models/team/sql/", "azureBlob", "az://account/models/team/sql"),
        ("oci://ghcr.io/org/sql:v1", "oci", "oci://ghcr.io/org/sql:v1"),
    ],
)
def test_an_address_names_its_source(address: str, kind: str, uri: str) -> None:
    source = open_address(address, {})
    assert (source.kind, source.uri) == (kind, uri)


@pytest.mark.parametrize(
    ("address", "environ", "error", "message"),
    [
        ("ftp://models/sql", {}, PathNotAllowed, "ftp:// is no address of an adapter"),
        ("file://models/sql", {}, PathNotAllowed, "file://models/sql is not of the form file:///"),
        ("file://", {}, PathNotAllowed, "file:// is not of the form file:///absolute/path"),
        ("file://[x/", {}, PathNotAllowed, "file://[x/ is not of the form file:///absolute/path"),
        ("hf://sql", {}, PathNotAllowed, "hf://sql is none of hf://org/repo,"),
        ("s3:///sql", {}, PathNotAllowed, "source.s3.bucket '' is not a bucket's name"),
        (
            "s3://models/sql",
            {"AWS_ACCESS_KEY_ID": "id"},
            AccessDenied,
            "the environment lacks key secretAccessKey",
        ),
        (
            "s3://models/sql",
            {**KEYS, "AWS_CA_BUNDLE": "/none.pem"},
            AccessDenied,
            "AWS_CA_BUNDLE: /none.pem is not readable",
        ),
        (
            "gs://models/sql",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/none.json"},
            AccessDenied,
            "GOOGLE_APPLICATION_CREDENTIALS: /none.json is not readable",
        ),
        (
            "oci://ghcr.io/org/sql:v1",
            {"DOCKER_CONFIG": "/none"},
            AccessDenied,
            "DOCKER_CONFIG: /none/config.json is not readable",
        ),
    ],
)
def test_what_cannot_be_opened_is_refused(
    address: str, environ: Mapping[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match="^" + re.escape(message)):
        open_address(address, environ)


def test_an_empty_variable_counts_as_not_set() -> None:
    environ = {"AWS_ACCESS_KEY_ID": "", "AWS_ENDPOINT_URL": "", "AWS_REGION": ""}
    assert open_address("s3://models", environ).uri == "s3://models"


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("runs/step?10#a", "runs/step?10#a"),
        ("https://me:canary@models.example/sql?sig=canary#canary", "https://models.example/sql"),
        ("hf://org/sql@v1/step", "hf://org/sql@v1/step"),
        ("s3://models/sql", "s3://models/sql"),
        ("https://models.example?sig=canary", "https://models.example"),
    ],
)
def test_no_secret_of_an_address_is_printed(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


def test_a_path_stays_what_was_typed() -> None:
    assert open_address(str(Path("/data/sql")), {}).uri == "/data/sql"
