"""Settings come from the environment alone, and a wrong one is named."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from lorafleet_sidecar.settings import InvalidSetting, SidecarSettings, parse_quantity

REQUIRED = {"LORAFLEET_VOLUME": "/vol", "LORAFLEET_ARENA_BYTES": "512Mi"}


def test_the_defaults_are_local_and_plain() -> None:
    settings = SidecarSettings.from_environ(REQUIRED)
    assert settings.volume == Path("/vol")
    assert settings.arena_bytes == 512 << 20
    assert settings.listen == "127.0.0.1:7070"
    assert settings.engine_url == "http://127.0.0.1:8000"


def test_with_tls_the_sidecar_listens_to_all() -> None:
    settings = SidecarSettings.from_environ({**REQUIRED, "LORAFLEET_TLS_DIR": "/tls"})
    assert settings.listen == "0.0.0.0:7070"


@pytest.mark.parametrize(
    ("text", "value"), [("1048576", 1 << 20), ("2Gi", 2 << 30), ("5M", 5_000_000), ("0", 0)]
)
def test_quantities_have_units(text: str, value: int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({}, "LORAFLEET_VOLUME is not set"),
        ({"LORAFLEET_VOLUME": "/v"}, "LORAFLEET_ARENA_BYTES is not set"),
        ({**REQUIRED, "LORAFLEET_ARENA_BYTES": "many"}, "LORAFLEET_ARENA_BYTES='many'"),
        ({**REQUIRED, "LORAFLEET_ARENA_BYTES": "-1"}, "LORAFLEET_ARENA_BYTES='-1'"),
        ({**REQUIRED, "LORAFLEET_LISTEN": "here"}, "LORAFLEET_LISTEN='here'"),
        ({**REQUIRED, "LORAFLEET_LISTEN": "0.0.0.0:1"}, "LORAFLEET_TLS_DIR is not set"),
        (
            {**REQUIRED, "LORAFLEET_RECEIVERS": "x"},
            "LORAFLEET_RECEIVERS='x': expected a whole number",
        ),
        ({**REQUIRED, "LORAFLEET_REFRESH_SECONDS": "0"}, "LORAFLEET_REFRESH_SECONDS='0'"),
        (
            {**REQUIRED, "LORAFLEET_STALL_SECONDS": "x"},
            "LORAFLEET_STALL_SECONDS='x': expected seconds",
        ),
        ({**REQUIRED, "LORAFLEET_ALLOW_INSECURE": "maybe"}, "LORAFLEET_ALLOW_INSECURE='maybe'"),
    ],
)
def test_a_wrong_setting_is_named(environ: dict[str, str], line: str) -> None:
    with pytest.raises(InvalidSetting) as failure:
        SidecarSettings.from_environ(environ)
    assert line in str(failure.value)


def test_every_field_can_be_set_by_its_name() -> None:
    values = {
        "volume": "/v", "arena_bytes": "1Gi", "pod_uid": "u", "listen": "127.0.0.1:1",
        "allow_insecure": "true", "tls_dir": "/t", "receivers": "4", "receiver_base_port": "7100",
        "engine_url": "http://127.0.0.1:9", "engine_api_key_file": "/k",
        "metrics_listen": "127.0.0.1:2", "refresh_seconds": "0.5", "load_timeout_seconds": "7",
        "probe_timeout_seconds": "8", "drain_timeout_seconds": "9", "stall_seconds": "5",
        "resume_seconds": "6", "peer_name": "engines.demo",
        "operator_name": "operator.demo",
    }  # fmt: skip
    assert set(values) == {field.name for field in fields(SidecarSettings)}
    settings = SidecarSettings.from_environ(
        {f"LORAFLEET_{k.upper()}": v for k, v in values.items()}
    )
    default = SidecarSettings(volume=Path("/"), arena_bytes=0)
    unchanged = [k for k in values if getattr(settings, k) == getattr(default, k)]
    assert unchanged == []


def test_an_empty_metrics_address_means_no_metrics() -> None:
    settings = SidecarSettings.from_environ({**REQUIRED, "LORAFLEET_METRICS_LISTEN": ""})
    assert settings.metrics_listen == ""
