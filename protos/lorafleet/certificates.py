"""The files of a mounted TLS Secret: tls.crt, tls.key and ca.crt, as they were last found whole.

The kubelet renews a mounted Secret by pointing the link `..data` at another folder, so the three
files change at once; whoever writes them one by one is caught with a key and a certificate that do
not belong together. Such files are not used: what was read before stays, and one line says so.
"""

from __future__ import annotations

import logging
import re
import ssl
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from lorafleet.errors import LorafleetError

if TYPE_CHECKING:
    from pathlib import Path

_LOG: Final = logging.getLogger(__name__)
_FILES: Final = ("ca.crt", "tls.key", "tls.crt")
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")
_Stamp = tuple[tuple[int, int, int], ...]


class CertificatesUnusable(LorafleetError):
    """Raised for files that are missing, no certificates, or do not belong together."""

    reason = "InternalError"


@dataclass(frozen=True)
class Certificates:
    """One consistent reading of the files, as PEM bytes; times in seconds since 1970."""

    ca: bytes
    key: bytes = field(repr=False)
    certificate: bytes
    valid_from: float
    expires_at: float
    authority_expires_at: float
    """When the last certificate of `ca` expires: during a change of authority it holds several."""


class CertificateFiles:
    """Reads the files of `folder` again whenever they have changed. Any thread may ask."""

    def __init__(self, folder: Path) -> None:
        """Raises CertificatesUnusable if they cannot be used; expired ones are used, and told."""
        self.folder = folder
        self.problem = ""
        """Why the files that are there now are not used; empty when they are."""
        self._lock = threading.Lock()
        self._tried, self._kept = _read(folder)
        self._tell_times()

    def current(self) -> Certificates:
        """Return the newest usable ones. The same object as before means that nothing is new."""
        with self._lock:
            if _stamp(self.folder) != self._tried:
                self._look_again()
            return self._kept

    def _look_again(self) -> None:
        self._tried = _stamp(self.folder)
        try:
            self._tried, found = _read(self.folder)
            if found.expires_at <= time.time() < self._kept.expires_at:
                raise CertificatesUnusable(f"tls.crt expired on {_day(found.expires_at)}")
        except CertificatesUnusable as error:
            if self.problem != str(error):
                self.problem = str(error)
                _LOG.warning(
                    "certificates in %s: %s; keeping those that expire on %s",
                    self.folder, error, _day(self._kept.expires_at),
                )  # fmt: skip
            return
        self.problem = ""
        if found != self._kept:
            self._kept = found
            _LOG.info(
                "certificates in %s were renewed: they expire on %s",
                self.folder, _day(found.expires_at),
            )  # fmt: skip
            self._tell_times()

    def _tell_times(self) -> None:
        now = time.time()
        if self._kept.expires_at <= now:
            line = f"tls.crt expired on {_day(self._kept.expires_at)}"
        elif self._kept.valid_from > now:
            line = f"tls.crt is not valid before {_day(self._kept.valid_from)}"
        else:
            return
        _LOG.warning("certificates in %s: %s: nobody will accept it", self.folder, line)


def _read(folder: Path) -> tuple[_Stamp, Certificates]:
    """Return the files, read at one moment, and their stamp."""
    for _ in range(3):
        before = _stamp(folder)
        swapped = folder / "..data"
        there = swapped.resolve() if swapped.exists() else folder
        try:
            ca, key, certificate = ((there / name).read_bytes() for name in _FILES)
            _check_pair(there, ca)
            valid_from, expires_at = _validity(certificate)[0]
            authority = max(until for _, until in _validity(ca))
        except OSError as error:  # ssl's errors too
            problem = f"{getattr(error, 'reason', None) or error.strerror or error}"
            if error.filename:
                problem += f": {error.filename}"
        except (ValueError, IndexError) as error:
            problem = f"no certificate in PEM form: {error}"
        else:
            problem = ""
        if _stamp(folder) == before:
            if problem:
                raise CertificatesUnusable(problem)
            return before, Certificates(ca, key, certificate, valid_from, expires_at, authority)
    raise CertificatesUnusable("the files change while they are read")


def _check_pair(folder: Path, ca: bytes) -> None:
    """Raise if the key is not the certificate's, or if one of the files holds no such thing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The password keeps OpenSSL from asking a terminal for that of an encrypted key.
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key", password="none")  # noqa: S106
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise CertificatesUnusable("tls.key is not the key of tls.crt") from None
        raise CertificatesUnusable("tls.crt or tls.key is not in PEM form") from None
    try:
        context.load_verify_locations(cadata=ca.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise CertificatesUnusable("ca.crt holds no certificate in PEM form") from None


def _stamp(folder: Path) -> _Stamp:
    stamps = []
    for name in _FILES:
        try:
            found = (folder / name).stat()
        except OSError:
            stamps.append((0, 0, 0))
        else:
            stamps.append((found.st_ino, found.st_mtime_ns, found.st_size))
    return tuple(stamps)


def _validity(pem: bytes) -> list[tuple[float, float]]:
    """Return from when until when each certificate holds. Raises ValueError, IndexError."""
    texts = _PEM.findall(pem.decode("ascii"))
    if not texts:
        raise ValueError("none found")
    return [_times(ssl.PEM_cert_to_DER_cert(text)) for text in texts]


def expires_at(pem: bytes) -> float:
    """Return when the certificate expires. Raises ValueError or IndexError if it is none."""
    return _validity(pem)[0][1]


def _times(der: bytes) -> tuple[float, float]:
    """Return the two times of one certificate (RFC 5280, 4.1): no library here reads them."""
    fields = _parts(_parts(der)[0][1])[0][1]  # Certificate, its TBSCertificate
    parts = _parts(fields)
    # version [0], serial, algorithm, issuer, validity; a first certificate format has no version.
    validity = parts[4 if parts[0][0] == 0xA0 else 3][1]
    begin, end = (_time(tag, value) for tag, value in _parts(validity))
    return begin, end


def _time(tag: int, value: bytes) -> float:
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"  # UTCTime, GeneralizedTime
    return datetime.strptime(value.decode("ascii"), form).replace(tzinfo=UTC).timestamp()


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return (tag, content) of each element that lies in `der`, one after another."""
    found, at = [], 0
    while at < len(der):
        tag, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:
            width = size & 0x7F
            size, at = int.from_bytes(der[at : at + width], "big"), at + width
        found.append((tag, der[at : at + size]))
        at += size
    return found


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
