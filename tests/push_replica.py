"""A replica of the operator of which a test says what it answers to trainers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import grpc
from lorafleet.push.sending import MOST_MANIFEST_BYTES
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answering(replica: pb_grpc.PushServiceServicer) -> Iterator[str]:
    """Serve it on loopback; yield its address."""
    options = (("grpc.max_receive_message_length", MOST_MANIFEST_BYTES),)
    server = grpc.server(ThreadPoolExecutor(4), options=options)
    pb_grpc.add_PushServiceServicer_to_server(replica, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
