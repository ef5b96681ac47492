"""Whatever a web server does: one version's bytes, or one line."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from http_source_rig import opened
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import LorafleetError
from servers import LyingServer, Request
from source_builders import CONFIG, FAST, adapter, data_of, read_all

if TYPE_CHECKING:
    from lorafleet_operator.sources.base import Source

VERSIONS = [
    {**adapter(elements=1 << 15, seed=seed), "adapter_config.json": CONFIG + b" " * seed}
    for seed in range(2)
]
RIGHT = {
    files["adapter_config.json"]: data_of(files["adapter_model.safetensors"]) for files in VERSIONS
}
QUICK = replace(FAST, backoff_s=0.0001, max_wait_s=0.0)


def served(version: int) -> dict[str, bytes]:
    return {f"/sql/{name}": content for name, content in VERSIONS[version].items()}


# An ETag that stays although the content changes is a lie that nobody can notice: not among them.
MANNERS = st.fixed_dictionaries(
    {},
    optional={
        "ranges": st.booleans(),
        "length": st.booleans(),
        "honours_conditions": st.booleans(),
        "etag": st.sampled_from(["content", None, 'W/"weak"']),
        "drop_after": st.sampled_from([0, 10, 1000, 70_000]),
        "drops": st.integers(1, 6),
        "short": st.sampled_from([1000, 70_000]),
        "shift": st.sampled_from([0, 1, 8]),
        "claims": st.sampled_from([0, 0, 100, -20]),
        "content_range": st.sampled_from(["", "", "bytes 0-9/10", "nonsense", "bytes */7"]),
        "status": st.sampled_from([None, None, None, 204, 206, 302, 404, 416, 429, 503]),
        "files": st.sampled_from([served(0), served(1), {}]),
        "extra_headers": st.sampled_from(
            [{}, {}, {"Content-Encoding": "gzip"}, {"Retry-After": "0"}, {"Location": "/sql/x"}]
        ),
    },
)


async def outcome(source: Source) -> tuple[bytes, bytes] | LorafleetError:
    async with aclosing(source):
        try:
            found = await source.resolve()
            data = await read_all(found, 30_000)
            await found.confirm()
        except LorafleetError as error:
            return error
        return found.config_bytes, data


@settings(max_examples=80)
@given(first=MANNERS, then=MANNERS, at=st.integers(1, 12), back=st.integers(1, 12))
async def test_the_bytes_of_one_version_or_one_line(
    first: dict[str, Any], then: dict[str, Any], at: int, back: int
) -> None:
    """The server changes its manners, and maybe its files, at one request, and back at another."""
    honest = {"etag": "content", "files": served(0)}

    def change(server: LyingServer, request: Request) -> None:
        if len(server.requests) == at:
            vars(server).update(then)
        if len(server.requests) == at + back:
            vars(server).update(honest | {"status": None, "content_range": "", "shift": 0})

    async with LyingServer(**{**honest, **first}, on_request=change).running() as server:
        result = await outcome(opened(server, settings=QUICK))
    if isinstance(result, LorafleetError):
        assert "\n" not in str(result)
        assert len(str(result)) < 400
    else:
        config, data = result
        assert data == RIGHT[config]
