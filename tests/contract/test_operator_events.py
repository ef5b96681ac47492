"""Events are for people: a pass does not fail for one that nobody can take."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kubernetes.aio.client import ApiClient, Configuration
from lorafleet_operator.api import names
from lorafleet_operator.cluster.writes import post_event

if TYPE_CHECKING:
    import pytest


async def test_an_event_without_an_api_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    body = {"metadata": {"namespace": "team-a", "name": "sql", "uid": "uid"}}
    async with ApiClient(Configuration(host="http://127.0.0.1:1")) as api:
        with caplog.at_level(logging.WARNING):
            await post_event(
                api, names.ADAPTER_KIND, body, type_="Warning", reason="Canary", message="text"
            )
    assert "cannot post event Canary about sql" in caplog.text
