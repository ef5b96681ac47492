"""Statuses of gRPC become our errors, and nothing else of gRPC leaves the client."""

from __future__ import annotations

import grpc
import pytest
from lorafleet.errors import EngineUnreachable, LorafleetError, leaves
from lorafleet_operator.transfer.client import translate_status


@pytest.mark.parametrize("cls", leaves())
def test_a_reason_that_was_sent_names_the_error_and_its_terminality(
    cls: type[LorafleetError],
) -> None:
    error = translate_status(grpc.StatusCode.ABORTED, "one line", cls.reason, "a:1")
    assert error.reason == cls.reason
    assert error.terminal == cls.terminal
    assert str(error) == "one line"


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_without_a_reason_it_is_silence_or_a_fault_and_never_the_adapters(
    code: grpc.StatusCode,
) -> None:
    error = translate_status(code, "failed to connect\nmore", "", "10.0.0.7:7070")
    assert not error.terminal
    assert str(error) == f"sidecar at 10.0.0.7:7070: {code.name}: failed to connect"
    silent = {
        "UNAVAILABLE",
        "DEADLINE_EXCEEDED",
        "CANCELLED",
        "UNIMPLEMENTED",
        "UNAUTHENTICATED",
        "INTERNAL",
    }
    assert isinstance(error, EngineUnreachable) is (code.name in silent)


def test_an_empty_message_is_never_passed_on() -> None:
    error = translate_status(grpc.StatusCode.INTERNAL, "", "EngineRejected", "a:1")
    assert str(error) == "sidecar at a:1 gave no message (EngineRejected)"
