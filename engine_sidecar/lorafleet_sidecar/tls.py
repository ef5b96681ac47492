"""Mutual TLS of the gRPC server, from the files of a TLS Secret."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from pathlib import Path


def mutual_tls(folder: Path) -> grpc.ServerCredentials:
    """Return credentials that refuse clients without a certificate of `ca.crt`.

    The files are read again for each new connection when they changed, so that a rotated
    certificate works without a restart.
    """

    def read() -> grpc.ServerCertificateConfiguration:
        pair = ((folder / "tls.key").read_bytes(), (folder / "tls.crt").read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], (folder / "ca.crt").read_bytes())

    def stamp() -> tuple[int, ...]:
        return tuple((folder / f).stat().st_mtime_ns for f in ("tls.key", "tls.crt", "ca.crt"))

    seen = [stamp()]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        with contextlib.suppress(OSError):
            if stamp() != seen[0]:
                fresh = read()
                seen[0] = stamp()
                return fresh
        return None  # keep what is in use

    return grpc.dynamic_ssl_server_credentials(
        read(),
        fetch,  # type: ignore[arg-type]  # None means no change; the stubs forgot it
        require_client_authentication=True,
    )
