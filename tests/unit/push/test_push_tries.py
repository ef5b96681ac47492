"""What a trainer's client tries again, and what it brings into a process."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from lorafleet.errors import (
    AccessDenied,
    EngineUnreachable,
    InvalidAdapter,
    LorafleetError,
    StagingBusy,
)
from lorafleet.grpc_errors import REASON_KEY, cut, status_of
from lorafleet.push import Overtaken
from lorafleet.push.connection import Connection, Operator
from lorafleet.push.fleet import Named
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from push_replica import answering

if TYPE_CHECKING:
    from collections.abc import Iterator


class Replica(pb_grpc.PushServiceServicer):
    """Refuses with each of `errors`, one call after another, then answers."""

    def __init__(self) -> None:
        self.errors: list[LorafleetError] = []
        self.tokens: list[str] = []

    def WatchPush(self, _request: Any, context: Any) -> Iterator[pb.PushStatus]:  # noqa: N802
        self.tokens.append(dict(context.invocation_metadata())["authorization"])
        if self.errors:
            error = self.errors.pop(0)
            context.set_trailing_metadata(((REASON_KEY, error.reason),))
            context.abort(status_of(error), str(error))
        yield pb.PushStatus(step=7)


@pytest.fixture
def replica() -> Iterator[tuple[Replica, str]]:
    made = Replica()
    with answering(made) as address:
        yield made, address


def ask(address: str, seconds: float) -> int:
    tokens = iter("abcdefgh")
    connection = Connection(Operator(address, lambda: next(tokens), None, seconds))
    try:
        return connection.call(
            lambda stub, metadata: int(
                next(stub.WatchPush(pb.WatchPushRequest(), metadata=metadata)).step
            )
        )
    finally:
        connection.close()


def test_another_replica_and_a_busy_one_are_tried_again_with_a_new_token(
    replica: tuple[Replica, str],
) -> None:
    there, address = replica
    there.errors = [EngineUnreachable("another replica acts"), StagingBusy("wait")]
    assert ask(address, 20) == 7
    assert there.tokens == ["Bearer a", "Bearer b", "Bearer c"]


def test_what_cannot_pass_is_raised_at_once(replica: tuple[Replica, str]) -> None:
    there, address = replica
    there.errors = [AccessDenied("not you")]
    with pytest.raises(AccessDenied, match=r"^not you$"):
        ask(address, 20)
    assert len(there.tokens) == 1
    there.errors = [EngineUnreachable("another replica acts")] * 9
    with pytest.raises(EngineUnreachable, match="another replica acts"):
        ask(address, 0)


def test_importing_the_client_brings_neither_torch_nor_peft() -> None:
    heavy = {"torch", "peft", "transformers", "numpy", "trl"}
    code = f"import lorafleet.push, sys; print(sorted({heavy!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_one_who_was_overtaken_does_not_come_again(replica: tuple[Replica, str]) -> None:
    """Two trainers of one adapter would else break one another off for ever."""
    there, address = replica
    there.errors = [Overtaken("another took its place")] * 2
    with pytest.raises(Overtaken, match=r"^another took its place$"):
        ask(address, 20)
    assert len(there.tokens) == 1


SECRET = "eyJhbGciOiJSUzI1NiIs.eyJhdWQiOlsibG9yYWZsZWV0Il19.c2VjcmV0LXNpZ25hdHVyZQ"


@pytest.mark.parametrize(
    "token",
    [
        SECRET,
        SECRET * 20,
        SECRET + "\0",
        lambda: f"{SECRET}\n{SECRET}",
        lambda: f"{SECRET}\u00e9",
        lambda: SECRET + "x" * (1 << 20),
        lambda: "",
    ],
)
def test_no_token_is_told_however_it_is_given(token: Any, replica: tuple[Replica, str]) -> None:
    operator = Operator(replica[1], token, None, 0)
    assert SECRET not in repr(operator)
    with pytest.raises(AccessDenied) as caught:
        Connection(operator).call(lambda stub, metadata: stub.WatchPush(1, metadata=metadata))
    told: BaseException | None = caught.value
    while told is not None:
        assert SECRET not in repr(told)
        told = None if told.__suppress_context__ else told.__context__
    assert len(str(caught.value)) < 200
    assert replica[0].tokens == []


def test_a_step_that_cannot_be_sent_is_refused_in_one_line() -> None:
    for step in (-1, 1 << 63, "7", 1.5):
        with pytest.raises(InvalidAdapter, match=r"^(step -1 is negative|what names the push)"):
            Named(name="a", step=step).manifest("ns")  # type: ignore[arg-type]
    assert Named(name="a", step=(1 << 63) - 1).manifest("ns").step == (1 << 63) - 1


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600", "\ud800"])
def test_a_line_of_any_length_goes_through_a_status(letter: str) -> None:
    assert cut("short") == "short"
    line = cut(letter * 100_000)
    assert line.endswith(" ..")
    assert len(quote(line)) < 8000, "beyond that gRPC drops the whole answer"
