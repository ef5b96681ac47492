"""What a trainer learns of its safe point: figures before and after, across operators that end."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.errors import AccessDenied, EngineUnreachable, InvalidAdapter, LorafleetError
from lorafleet.grpc_errors import REASON_KEY, status_of
from lorafleet.push import Fleet, NotServed, RecycledEngine, SafePoint
from lorafleet.push.callback import PushCallback
from lorafleet.push.safe_point import outcome
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from push_replica import answering

if TYPE_CHECKING:
    from collections.abc import Iterator

MAIN = SimpleNamespace(is_world_process_zero=True, global_step=7)


def engine(pod: str, instance: str = "i1", **fields: Any) -> pb.SafePointEngine:
    known = {"loads": 9, "growth_per_load": 100, "host_bytes": 1000, **fields}
    return pb.SafePointEngine(pod=pod, instance=instance, **known)


def status(
    *engines: pb.SafePointEngine, done: bool = False, message: str = "m"
) -> pb.SafePointStatus:
    return pb.SafePointStatus(done=done, message=message, engines=engines)


class Operator(pb_grpc.PushServiceServicer):
    """Answers one call after another with each of `calls`: statuses, at the end an error if one is
    there. A None lets the call wait until its client has gone."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.requests: list[pb.OpenSafePointRequest] = []
        self.asked, self.gone = threading.Event(), threading.Event()

    def OpenSafePoint(self, request: Any, context: Any) -> Iterator[pb.SafePointStatus]:  # noqa: N802
        self.requests.append(request)
        self.asked.set()
        context.add_callback(self.gone.set)
        for each in self.calls.pop(0):
            if each is None:
                self.gone.wait(60)
            elif isinstance(each, LorafleetError):
                context.set_trailing_metadata(((REASON_KEY, each.reason),))
                context.abort(status_of(each), str(each))
            else:
                yield each


@pytest.fixture
def operator() -> Iterator[tuple[Operator, Fleet]]:
    made = Operator()
    with answering(made) as address, Fleet(address, "team-a", token=lambda: "t") as fleet:
        yield made, fleet


def test_engines_that_were_due_and_were_started_again_have_figures_from_before_and_after() -> None:
    first = {
        "e-2": engine("e-2", due="grew", loads=50, host_bytes=5000),
        "e-1": engine("e-1", due="too many", growth_per_load=-1),
        "e-3": engine("e-3", due="cannot end"),
        "e-4": engine("e-4", due="its pod is gone"),
        "e-5": engine("e-5", due="does not answer"),
    }
    last = status(
        engine("e-0", "i7"),
        engine("e-1", "i2", host_bytes=10),
        engine("e-2", "i2", host_bytes=20),
        engine("e-3", due="cannot end"),
        engine("e-5", ""),
        message="no engine is due",
    )
    assert outcome(first, last) == SafePoint(
        (
            RecycledEngine("e-1", "too many", 9, None, 1000, 10),
            RecycledEngine("e-2", "grew", 50, 100, 5000, 20),
        ),
        "no engine is due",
    )


def test_a_safe_point_goes_on_at_the_operator_that_comes_next(
    operator: tuple[Operator, Fleet],
) -> None:
    there, fleet = operator
    due, other = engine("e-0", due="grew", loads=50), engine("e-1", due="grew too")
    there.calls = [
        [status(due, other), EngineUnreachable("the operator ends")],
        [EngineUnreachable("another replica acts")],
        [
            status(engine("e-0", "i2"), other),
            status(engine("e-0", "i2"), engine("e-1", "i2"), done=True),
        ],
    ]
    found = fleet.safe_point("policy", 600)
    assert [(each.pod, each.loads) for each in found.recycled] == [("e-0", 50), ("e-1", 9)]
    first, *_ = there.requests
    assert (first.namespace, first.name, first.timeout_seconds) == ("team-a", "policy", 600)


def test_what_is_not_over_in_time_says_what_it_waited_for(
    operator: tuple[Operator, Fleet],
) -> None:
    there, fleet = operator
    there.calls = [[status(engine("e-0", due="x"), message="e-0 waits")]]
    with pytest.raises(NotServed, match=r"of team-a/policy was not over after 600 s: e-0 waits"):
        fleet.safe_point("policy", 600)
    there.calls = [[AccessDenied("you may not")]]
    with pytest.raises(AccessDenied, match=r"^you may not$"):
        fleet.safe_point("policy", 600)
    with pytest.raises(InvalidAdapter, match="nothing was pushed yet"):
        fleet.safe_point()


def test_one_that_is_closed_ends_and_is_not_opened_again(
    operator: tuple[Operator, Fleet],
) -> None:
    there, fleet = operator
    there.calls = [[status(engine("e-0", due="x")), None]]
    opening = fleet.opening("policy", 600)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(opening.wait)
        assert there.asked.wait(60)
        opening.close()
        with pytest.raises(NotServed, match="was closed"):
            waiting.result(60)
    assert there.gone.wait(60)
    assert len(there.requests) == 1


def test_a_close_in_the_moment_of_opening_ends_it_too(
    operator: tuple[Operator, Fleet],
) -> None:
    _, fleet = operator
    opening = fleet.opening("policy", 600)
    cancelled: list[str] = []

    def opened(*_: Any, **__: Any) -> Any:
        opening.close()
        return SimpleNamespace(cancel=lambda: cancelled.append("call"))

    opening._ask(SimpleNamespace(OpenSafePoint=opened), (), 5.0)
    assert cancelled == ["call"]


def test_a_checkpoint_is_a_safe_point_of_the_main_process_and_ends_no_training(
    operator: tuple[Operator, Fleet], caplog: pytest.LogCaptureFixture
) -> None:
    there, fleet = operator
    PushCallback(fleet, name="policy").on_save(None, MAIN, None)
    callback = PushCallback(fleet, name="policy", safe_point_on_save=60)
    callback.on_save(None, SimpleNamespace(is_world_process_zero=False), None)
    assert there.requests == []
    there.calls = [[status(done=True)], [AccessDenied("you may not")]]
    callback.on_save(None, MAIN, None)
    assert callback.safe_point == SafePoint((), "m")
    with caplog.at_level(logging.WARNING):
        callback.on_save(None, MAIN, None)
    assert callback.safe_point is None
    assert "step 7 is no safe point: you may not" in caplog.text
