"""Buckets and registries: opening a source, reading all of it, and what every store must do."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from lorafleet.errors import InvalidAdapter, PathNotAllowed, SourceChanged, SourceNotFound
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source
from servers import CuttingProxy
from source_builders import (
    CONFIG,
    FAST,
    adapter,
    data_of,
    read_all,
    sharded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet.errors import LorafleetError
    from lorafleet_operator.sources.base import ResolvedAdapter, Source

FILES = adapter(elements=1 << 18)
OTHER = adapter(elements=1 << 18, seed=5)
DATA = data_of(FILES["adapter_model.safetensors"])
OTHER_DATA = data_of(OTHER["adapter_model.safetensors"])
PICKLE = Path(__file__).parent / "cases" / "d44-bin-weights"
PREFIX = "team a/sql+v1/ü"
ODD_PREFIXES = ("a%20b%/x", "q?#&=/x", "p'(1)!*~/@:;,$", "日本/\u00e9e\u0301", 'o [x]{y}|^"<>/z')
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
        data = await read_all(found, 300_000)
        await found.confirm()
        return found, data
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


@dataclass(frozen=True)
class RealStore:
    """A running store of objects with the adapter FILES below PREFIX of one bucket."""

    kind: str
    endpoint: str
    root: str
    """URI of the bucket."""
    place: dict[str, Any]
    """The bucket, as `spec.source` names it."""
    secret: dict[str, bytes] = field(repr=False)
    put: Callable[[str, bytes], None] = field(repr=False)
    """Stores an object under its key."""
    no_bucket: dict[str, str]
    """What names a bucket that does not exist, and the message for it."""
    passes: int = 1
    """How often a file is read: once more where the server tells no version."""
    same_again: bool = True
    """Whether an upload of the same bytes is the same version."""

    def upload(self, prefix: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            self.put(f"{prefix}/{name}", content)

    def spec(self, prefix: str = PREFIX, **changes: Any) -> dict[str, Any]:
        return {**self.place, "endpoint": self.endpoint, "prefix": prefix, **changes}

    def opened(self, prefix: str = PREFIX, **changes: Any) -> Source:
        return opened(self.kind, self.spec(prefix, **changes), self.secret)


class StoreContract:
    """What holds for every store of objects; a fixture `store` says which."""

    async def test_an_adapter_is_read_with_credentials(self, store: RealStore) -> None:
        found, data = await resolved(store.opened())
        assert data == DATA
        assert found.uri == f"{store.root}/{PREFIX}"
        assert found.normalized == ()

    async def test_a_key_is_taken_as_it_is_written(self, store: RealStore) -> None:
        for prefix in ODD_PREFIXES:
            store.upload(prefix, FILES)
            _, data = await resolved(store.opened(f"{prefix}/"))
            assert data == DATA, prefix

    async def test_a_prefix_may_be_the_weights_file(self, store: RealStore) -> None:
        for name in FILES:
            found, data = await resolved(store.opened(f"{PREFIX}/{name}"))
            assert data == DATA
            assert found.uri == f"{store.root}/{PREFIX}"
        store.upload("run", {"adapter_config.json": CONFIG})
        store.put("run/sql.safetensors", OTHER["adapter_model.safetensors"])
        _, data = await resolved(store.opened("run/sql.safetensors"))
        assert data == OTHER_DATA

    async def test_shards_and_pickles_are_one_adapter(self, store: RealStore) -> None:
        files = sharded(FILES)
        store.upload("shards", files)
        found, data = await resolved(store.opened("shards"))
        assert data == DATA
        assert found.normalized == (
            "2 shards merged into one adapter_model.safetensors with 2 tensors",
        )
        one = "adapter_model-00001-of-00002.safetensors"
        assert (
            await refused(store.opened(f"shards/{one}"), InvalidAdapter)
            == f"{one} in {store.root}/shards is one of 2 shards; name their folder"
        )
        pickle = {path.name: path.read_bytes() for path in PICKLE.iterdir()}
        store.upload("pickle", pickle)
        found, _ = await resolved(store.opened("pickle"))
        assert found.normalized == ("adapter_model.bin converted to adapter_model.safetensors",)

    async def test_a_new_upload_is_noticed_midway_and_resolved_anew(self, store: RealStore) -> None:
        store.upload("moving", FILES)
        source = store.opened("moving")
        first = await source.resolve()
        await first.read(0, 1000)
        store.upload("moving", FILES)
        same = (await source.resolve()).fingerprint == first.fingerprint
        assert same == store.same_again
        store.upload("moving", OTHER)
        with pytest.raises(SourceChanged, match="changed since it was resolved"):
            await read_all(first)
        again = await source.resolve()
        assert again.fingerprint != first.fingerprint
        assert await read_all(again) == OTHER_DATA
        await again.confirm()
        await source.aclose()

    async def test_a_config_of_another_version_than_the_weights_is_noticed(
        self, store: RealStore
    ) -> None:
        store.upload("mixed", FILES)
        source = store.opened("mixed")
        found = await source.resolve()
        assert await read_all(found) == DATA
        store.upload("mixed", {"adapter_config.json": json.dumps({"r": 8}).encode()})
        with pytest.raises(SourceChanged) as caught:
            await found.confirm()
        assert (
            str(caught.value)
            == f"adapter_config.json in {store.root}/mixed: changed since it was resolved"
        )
        await source.aclose()

    async def test_a_broken_download_goes_on_where_it_broke(self, store: RealStore) -> None:
        """Counted in bytes that the server sends."""
        parts = urlsplit(store.endpoint)
        assert parts.port is not None
        async with CuttingProxy(parts.port).running() as proxy:
            proxy.cut_after, proxy.cuts = 250_000, 3
            source = store.opened(endpoint=f"http://127.0.0.1:{proxy.port}{parts.path}")
            _, data = await resolved(source)
            assert data == DATA
            assert proxy.cuts == 0
            # All of it, what was under way at each cut, and the heads of the files.
            assert proxy.served < store.passes * len(DATA) + 6 * 80_000

    async def test_reads_beside_one_another_are_each_right(self, store: RealStore) -> None:
        source = store.opened()
        found = await source.resolve()
        starts = range(0, found.data_bytes, 200_000)
        reads = [found.read(at, min(200_000, found.data_bytes - at)) for at in starts]
        assert b"".join(await asyncio.gather(*reads)) == DATA
        await source.aclose()

    async def test_missing_things_are_named(self, store: RealStore) -> None:
        assert (
            await refused(store.opened("nothing"), SourceNotFound)
            == f"adapter_config.json not found in {store.root}/nothing"
        )
        store.upload("half", {"adapter_config.json": b"{}"})
        text = await refused(store.opened("half"), SourceNotFound)
        assert text.startswith("no adapter_model.safetensors, ")
        for changes, message in [
            ({name: "no-such"}, text) for name, text in store.no_bucket.items()
        ]:
            assert await refused(store.opened(**changes), SourceNotFound) == message

    async def test_an_endpoint_on_the_node_itself_is_out_of_bounds(self, store: RealStore) -> None:
        strict = SourceSettings(backoff_s=0.001)
        source = opened(store.kind, store.spec(), store.secret, strict)
        text = await refused(source, PathNotAllowed)
        assert text == f"{store.root}/{PREFIX}: leads to a loopback address, not allowed"
