"""A certificate authority for a test, and a folder that changes as the kubelet changes one."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR = "operator.lorafleet"
AN_HOUR = (datetime.timedelta(minutes=-1), datetime.timedelta(hours=1))
PAST = (datetime.timedelta(hours=-2), datetime.timedelta(hours=-1))
FUTURE = (datetime.timedelta(hours=1), datetime.timedelta(hours=2))
Validity = tuple[datetime.timedelta, datetime.timedelta]


class Authority:
    """Issues certificates for 127.0.0.1 that are good for an hour, unless told otherwise."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        own = self._builder(self._name, self._key.public_key(), AN_HOUR)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = _pem(own.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, *also: str, valid: Validity = AN_HOUR) -> tuple[bytes, bytes]:
        """Return (key, certificate) as PEM; `also` holds further DNS names, `valid` counts from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        addresses: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
        ]
        addresses += [x509.DNSName(each) for each in also]
        builder = self._builder(_name(name), key.public_key(), valid)
        builder = builder.add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return pem, _pem(builder.sign(self._key, hashes.SHA256()))

    def files(self, name: str, *also: str, valid: Validity = AN_HOUR) -> dict[str, bytes]:
        """Return what a TLS Secret holds; the operator's certificate has the operator's name."""
        names = (*also, OPERATOR) if name == "operator" else also
        key, certificate = self.issue(name, *names, valid=valid)
        return {"tls.key": key, "tls.crt": certificate, "ca.crt": self.certificate}

    def write(self, folder: Path, name: str, *also: str) -> None:
        """Write these files one by one."""
        folder.mkdir(exist_ok=True)
        for file, content in self.files(name, *also).items():
            (folder / file).write_bytes(content)

    def _builder(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, valid: Validity
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + valid[0])
            .not_valid_after(now + valid[1])
        )


class MountedSecret:
    """A folder that changes as the kubelet changes a mounted Secret: one link is put in the place
    of another, and what it pointed to is removed."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        folder.mkdir()
        self.folder = folder
        self._count = 0
        self.swap(files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def swap(self, files: dict[str, bytes]) -> None:
        """Replace all files at once."""
        self._count += 1
        before = (self.folder / "..data").resolve()
        fresh = self.folder / f"..2026_{self._count}"
        fresh.mkdir()
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        (self.folder / "..data_tmp").symlink_to(fresh.name)
        (self.folder / "..data_tmp").rename(self.folder / "..data")
        if before.name.startswith("..2026_"):
            shutil.rmtree(before)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
