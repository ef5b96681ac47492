"""Settings are read from the environment, each refusal names its variable."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from lorafleet_operator.settings import _PARSERS, InvalidSetting, OperatorSettings


def test_every_field_can_be_set() -> None:
    assert {each.name for each in fields(OperatorSettings)} == set(_PARSERS)


def test_values_come_from_the_environment_and_empty_ones_count_as_not_given() -> None:
    settings = OperatorSettings.from_environ(
        {
            "LORAFLEET_NAMESPACES": "a, b",
            "LORAFLEET_VOLUME_ROOT": "/volumes",
            "LORAFLEET_RESYNC_SECONDS": "5",
            "LORAFLEET_TLS_DIR": "",
            "LORAFLEET_LISTEN": "",
        }
    )
    assert settings.namespaces == ("a", "b")
    assert settings.volume_root == Path("/volumes")
    assert settings.resync_seconds == 5
    assert settings.tls_dir is None
    assert settings.listen == ""


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("RESYNC_SECONDS", "0", "expected seconds above 0"),
        ("RESYNC_SECONDS", "soon", "expected seconds above 0"),
        ("TRANSFERS", "-1", "expected a whole number from 1 to 64"),
        ("CHUNK_BYTES", "1", "expected a whole number from"),
        ("LISTEN", "9465", "expected host:port"),
        ("SHARDS", "0", "expected a whole number from 1 to 64"),
        ("LEASE_NAME", "Our operator", "expected at most 60 lower-case letters"),
        ("LOG_LEVEL", "loud", "expected DEBUG"),
        ("TLS_SERVER_NAME", "{fleet}.engines", "fleet"),
        ("ALLOW_PRIVATE_ADDRESSES", "maybe", "expected true or false"),
    ],
)
def test_a_refusal_names_the_variable(name: str, value: str, text: str) -> None:
    with pytest.raises(InvalidSetting, match=f"LORAFLEET_{name}=.*{text}"):
        OperatorSettings.from_environ({f"LORAFLEET_{name}": value})
