"""Unit tests have nothing running: they may not even try to connect."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="module")  # not session: other folders may connect
def no_connections() -> Iterator[None]:
    """Refuse TCP connections in this process; what needs one belongs to tests/contract."""

    original = socket.socket.connect

    def refuse(_self: socket.socket, address: Any) -> NoReturn:
        raise AssertionError(f"a unit test connects to {address}: move it to tests/contract")

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:  # within this process, as event loops do
            refuse(self, address)
        original(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", connect)
        patch.setattr(socket.socket, "connect_ex", refuse)
        yield
