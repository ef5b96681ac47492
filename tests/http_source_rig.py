"""An adapter behind a web server that lies, for the tests of HTTP sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lorafleet_operator.sources.registry import open_source
from servers import LyingServer
from source_builders import FAST, adapter, data_of, read_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lorafleet.errors import LorafleetError
    from lorafleet_operator.sources.base import Source
    from lorafleet_operator.sources.bounds import SourceSettings

WEIGHTS = "/sql/adapter_model.safetensors"
CONFIG = "/sql/adapter_config.json"
FILES = adapter(elements=1 << 18)
DATA = data_of(FILES["adapter_model.safetensors"])
LENGTH = len(FILES["adapter_model.safetensors"]) - len(DATA)
"""Bytes in front of the data."""


@pytest.fixture
async def server() -> AsyncIterator[LyingServer]:
    lying = LyingServer(files={f"/sql/{name}": content for name, content in FILES.items()})
    async with lying.running():
        yield lying


def opened(
    server: LyingServer,
    path: str = "/sql",
    settings: SourceSettings = FAST,
    secret: dict[str, bytes] | None = None,
    **spec: Any,
) -> Source:
    reference = {"credentialsSecretRef": {"name": "keys"}} if secret is not None else {}
    return open_source(
        {"http": {"url": server.url + path}, **reference, **spec},
        namespace="team-a",
        name="sql",
        settings=settings,
        secret=secret,
    )


async def everything(source: Source, step: int = 1 << 18) -> bytes:
    try:
        return await read_all(await source.resolve(), step)
    finally:
        await source.aclose()


async def refused(source: Source, error: type[LorafleetError]) -> str:
    with pytest.raises(error) as caught:
        await everything(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)
