"""TLS of the gRPC servers, with certificates that may be renewed while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from lorafleet.certificates import CertificateFiles, Certificates


def server_tls(files: CertificateFiles, *, mutual: bool) -> grpc.ServerCredentials:
    """Return a server's credentials; if `mutual`, clients need a certificate of `ca.crt`.

    The files are looked at again for each new connection, so that renewed ones work without a
    restart. gRPC takes TLS 1.2 and 1.3, and of 1.2 only suites with forward secrecy and AEAD.
    """
    used = [files.current()]

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        found = files.current()
        if found is used[0]:
            return None  # no change
        used[0] = found
        return _configuration(found)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used[0]),
        fetch,  # type: ignore[arg-type]  # None means no change; the stubs forgot it
        require_client_authentication=mutual,
    )


def _configuration(found: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(found.key, found.certificate)], found.ca)
