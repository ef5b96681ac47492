"""Opening a source from its spec and reading all of it, for the tests of buckets and registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lorafleet_operator.sources.registry import open_source
from source_builders import FAST, adapter, data_of, read_all

if TYPE_CHECKING:
    from lorafleet.errors import LorafleetError
    from lorafleet_operator.sources.base import ResolvedAdapter, Source
    from lorafleet_operator.sources.bounds import SourceSettings

FILES = adapter(elements=1 << 18)
OTHER = adapter(elements=1 << 18, seed=5)
DATA = data_of(FILES["adapter_model.safetensors"])
OTHER_DATA = data_of(OTHER["adapter_model.safetensors"])
CANARY = "canary"
"""Part of every secret value in these tests; no message may hold it."""


def opened(
    kind: str,
    spec: dict[str, Any],
    secret: dict[str, bytes] | None = None,
    settings: SourceSettings = FAST,
    **more: Any,
) -> Source:
    source: dict[str, Any] = {kind: spec, **more}
    if secret is not None:
        source["credentialsSecretRef"] = {"name": "keys"}
    return open_source(source, namespace="team-a", name="sql", settings=settings, secret=secret)


async def resolved(source: Source) -> tuple[ResolvedAdapter, bytes]:
    try:
        found = await source.resolve()
        return found, await read_all(found, 300_000)
    finally:
        await source.aclose()


async def refused(source: Source, error: type[LorafleetError]) -> str:
    with pytest.raises(error) as caught:
        await resolved(source)
    text = str(caught.value)
    assert "\n" not in text
    assert CANARY not in text
    assert CANARY not in repr(caught.value.__cause__) + repr(caught.value.__context__)
    return text
