"""Keys and certificates for one local API server, made anew each time."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

VALID_DAYS = 7
_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write_pki(
    directory: Path, addresses: Sequence[str] = (), *, kubelet_client: bool = False
) -> None:
    """Write ca.crt, server.crt, server.key and the service account's sa.key, sa.pub.

    The server answers at loopback and at `addresses`. With `kubelet_client` come kubelet-client.crt
    and .key, as which an API server asks kubelets.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, server_key, account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca = _certificate(_name("lorafleet local CA"), ca_key, ca_key, None)
    server = _certificate(
        _name("kube-apiserver"), server_key, ca_key, ca, ("127.0.0.1", *addresses)
    )
    _write(directory / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    _write(directory / "server.crt", server.public_bytes(serialization.Encoding.PEM))
    _write(directory / "server.key", _pem(server_key))
    _write(directory / "sa.key", _pem(account_key))
    public = account_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _write(directory / "sa.pub", public)
    if kubelet_client:
        key = ec.generate_private_key(ec.SECP256R1())
        client = _certificate(_name("kube-apiserver", "system:masters"), key, ca_key, ca)
        _write(directory / "kubelet-client.crt", client.public_bytes(serialization.Encoding.PEM))
        _write(directory / "kubelet-client.key", _pem(key))


def _name(common: str, organization: str | None = None) -> x509.Name:
    """Who it is; the API server takes the organization for a group."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization is not None:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    addresses: Sequence[str] = (),
) -> x509.Certificate:
    """Return a certificate for `key`: an authority if `issuer` is None, a server's if it has addresses."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(authority=issuer is None), critical=True)
        # Python's and Go's verifiers ask for it in strict mode.
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if addresses:
        builder = builder.add_extension(
            x509.SubjectAlternativeName(
                [
                    *(x509.DNSName(name) for name in _NAMES),
                    *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
                ]
            ),
            critical=False,
        )
    return builder.sign(signer, hashes.SHA256())


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)
