"""A certificate authority for a test."""

from __future__ import annotations

import datetime
import ipaddress
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path


class Authority:
    """Issues certificates for 127.0.0.1 that are good for an hour."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        own = self._builder(self._name, self._key.public_key())
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = _pem(own.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, *also: str) -> tuple[bytes, bytes]:
        """Return (key, certificate) as PEM; `also` holds further DNS names."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
        ]
        addresses += [x509.DNSName(each) for each in also]
        builder = self._builder(_name(name), key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return pem, _pem(builder.sign(self._key, hashes.SHA256()))

    def write(self, folder: Path, name: str, *also: str) -> None:
        """Write tls.key, tls.crt and ca.crt, as a TLS Secret has them."""
        folder.mkdir(exist_ok=True)
        key, certificate = self.issue(name, *also)
        (folder / "tls.key").write_bytes(key)
        (folder / "tls.crt").write_bytes(certificate)
        (folder / "ca.crt").write_bytes(self.certificate)

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
