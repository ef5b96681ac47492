"""The name of one pushed revision, from what the operator says of the engines that serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.push import NotServed
from lorafleet.push.connection import Operator
from lorafleet.push.revision import Revision
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from push_replica import answering

if TYPE_CHECKING:
    from collections.abc import Iterator

OURS, ANOTHER = "sha256:" + "01" * 32, "sha256:" + "02" * 32
BF16, FP16 = "sha256:" + "1a" * 32, "sha256:" + "2b" * 32


class Told(pb_grpc.PushServiceServicer):
    """Says of an adapter what it is told to."""

    def __init__(self) -> None:
        self.status = pb.PushStatus()

    def WatchPush(self, _request: Any, _context: Any) -> Iterator[pb.PushStatus]:  # noqa: N802
        yield self.status


@pytest.fixture
def told() -> Iterator[tuple[Told, Revision]]:
    made = Told()
    with answering(made) as address:
        operator = Operator(address, lambda: "token", None, 20)
        yield made, Revision("ns", "rl", OURS, 3, 1, 0, False, "ns/rl", operator)


A, B, NONE = ("a", OURS, BF16), ("b", OURS, FP16), ("c", OURS, "")
CASES: dict[str, tuple[list[tuple[str, str, str]], str, str]] = {
    "all its digest": ([A], "", f"ns/rl@{'1a' * 32}"),
    "of the engines that serve it": ([("b", ANOTHER, FP16), A], "", f"ns/rl@{'1a' * 32}"),
    "of the pod that is named": ([A, B], "b", f"ns/rl@{'2b' * 32}"),
    "none while none does": ([("b", ANOTHER, FP16)], "", f"no engine serves {OURS} of ns/rl"),
    "nor while the pod does not": ([A], "b", f"b serves {OURS} of ns/rl"),
    "none that several have": ([A, B], "", f"serve {OURS} as {BF16} and {FP16}: name one"),
    "none without the plugin": ([A, NONE], "", "c has no plugin: it answers to ns/rl alone"),
}


@pytest.mark.parametrize("sentence", CASES)
def test_a_pinned_name_is(told: tuple[Told, Revision], sentence: str) -> None:
    engines, engine, expected = CASES[sentence]
    operator, revision = told
    for pod, found, digest in engines:
        operator.status.engines.add(pod=pod, revision=found, digest=digest)
    if expected.startswith("ns/rl@"):
        assert revision.pinned(engine) == expected
    else:
        with pytest.raises(NotServed, match=expected):
            revision.pinned(engine)
