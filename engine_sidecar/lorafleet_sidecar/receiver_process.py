"""One receiver process: a gRPC server that serves SendChunks into the arena.

Started by `receivers.ReceiverPool` with its orders as JSON; prints its port, one line, once it
listens. The kernel ends it together with its parent.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from lorafleet.buffers import reuse_large_buffers
from lorafleet.certificates import CertificateFiles
from lorafleet.server_tls import server_tls
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_sidecar.arena import Arena
from lorafleet_sidecar.callers import Callers
from lorafleet_sidecar.stripe import Stripes
from lorafleet_sidecar.transfer_settings import SERVER_OPTIONS, SERVICE

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until killed."""
    orders = json.loads(sys.argv[1])
    _die_with_parent(orders["parent"])
    reuse_large_buffers()
    asyncio.run(_serve(orders))


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before the request was made
        sys.exit("the sidecar that started this receiver is gone")


async def _serve(orders: dict[str, Any]) -> None:
    volume = Path(orders["volume"])
    threads = ThreadPoolExecutor(8, thread_name_prefix="receiver")
    stripes = Stripes(volume, Arena.attach(volume), threads, orders["stall_seconds"])

    async def send_chunks(requests: Any, context: Any) -> pb.SendChunksResponse:
        return await stripes.serve(context)

    handler = grpc.stream_unary_rpc_method_handler(
        send_chunks, response_serializer=pb.SendChunksResponse.SerializeToString
    )
    callers = [Callers(orders["operator_name"], "")] if orders["tls_dir"] else []
    server = grpc.aio.server(interceptors=callers, options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"SendChunks": handler}),)
    )
    address = f"{orders['host']}:{orders['port']}"
    if orders["tls_dir"]:
        credentials = server_tls(CertificateFiles(Path(orders["tls_dir"])), mutual=True)
        port = server.add_secure_port(address, credentials)
    else:
        port = server.add_insecure_port(address)
    await server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    main()
