"""The files of a TLS Secret: what is used of them while they change, and what is said."""

from __future__ import annotations

import datetime
import itertools
import logging
import time
from pathlib import Path

import pytest
from certificates import AN_HOUR, FUTURE, PAST, Authority, MountedSecret
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from lorafleet.certificates import (
    CertificateFiles,
    Certificates,
    CertificatesUnusable,
    expires_at,
)

OLD, NEW = Authority("old"), Authority("new")


@pytest.fixture
def secret(tmp_path: Path) -> MountedSecret:
    return MountedSecret(tmp_path / "tls", OLD.files("sidecar"))


def test_a_swap_of_the_link_is_followed_and_told_once(
    secret: MountedSecret, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    files = CertificateFiles(secret.folder)
    first = files.current()
    assert files.current() is first
    fresh = NEW.files("sidecar")
    secret.swap(fresh)
    second = files.current()
    assert (second.ca, second.key, second.certificate) == (
        fresh["ca.crt"], fresh["tls.key"], fresh["tls.crt"],
    )  # fmt: skip
    assert files.current() is second
    [line] = caplog.messages
    assert "were renewed: they expire on" in line
    assert "KEY" not in repr(second)
    secret.swap(fresh)
    assert files.current() is second, "a new link to the same content is no news"
    assert len(caplog.messages) == 1


BROKEN = {
    "another key": {"tls.key": NEW.files("x")["tls.key"]},
    "half a key": {"tls.key": NEW.files("x")["tls.key"][:100]},
    "half a certificate": {"tls.crt": NEW.files("x")["tls.crt"][:200]},
    "an empty certificate": {"tls.crt": b""},
    "an empty authority": {"ca.crt": b""},
    "an authority of noise": {"ca.crt": b"\xff\xfe" * 100},
    "an authority that is a key": {"ca.crt": NEW.files("x")["tls.key"]},
    "an expired pair": NEW.files("x", valid=PAST),
}
SAID = {
    "another key": "tls.key is not the key of tls.crt",
    "half a key": "tls.crt or tls.key is not in PEM form",
    "half a certificate": "tls.crt or tls.key is not in PEM form",
    "an empty certificate": "tls.crt or tls.key is not in PEM form",
    "an empty authority": "ca.crt holds no certificate in PEM form",
    "an authority of noise": "ca.crt holds no certificate in PEM form",
    "an authority that is a key": "ca.crt holds no certificate in PEM form",
    "an expired pair": "tls.crt expired on ",
}


@pytest.mark.parametrize("what", BROKEN)
def test_files_that_cannot_be_used_change_nothing_and_get_one_line(
    what: str, secret: MountedSecret, caplog: pytest.LogCaptureFixture
) -> None:
    files = CertificateFiles(secret.folder)
    before = files.current()
    secret.swap({**NEW.files("sidecar"), **BROKEN[what]})
    for _ in range(3):
        assert files.current() is before
    assert SAID[what] in files.problem
    [line] = caplog.messages
    assert files.problem in line
    assert "keeping those that expire on" in line
    assert "KEY" not in line
    secret.swap(NEW.files("sidecar"))
    assert files.current() is not before
    assert files.problem == ""


@pytest.mark.parametrize("name", ["tls.key", "tls.crt", "ca.crt"])
def test_a_file_that_is_gone_changes_nothing(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    OLD.write(tmp_path / "tls", "sidecar")
    files = CertificateFiles(tmp_path / "tls")
    before = files.current()
    (tmp_path / "tls" / name).unlink()
    assert files.current() is before
    assert f"No such file or directory: {tmp_path / 'tls' / name}" in files.problem
    assert len(caplog.messages) == 1
    with pytest.raises(CertificatesUnusable, match=name):
        CertificateFiles(tmp_path / "tls")


def test_files_written_one_by_one_are_used_when_they_belong_together(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    OLD.write(folder, "sidecar")
    files = CertificateFiles(folder)
    before, fresh = files.current(), OLD.files("sidecar")
    (folder / "tls.key").write_bytes(fresh["tls.key"])
    assert files.current() is before
    (folder / "tls.crt").write_bytes(fresh["tls.crt"])
    assert files.current().certificate == fresh["tls.crt"]


@pytest.fixture
def swaps(secret: MountedSecret, monkeypatch: pytest.MonkeyPatch) -> dict[int, dict[str, bytes]]:
    """What is swapped in before which of the next reads of a file, counted from 0."""
    coming: dict[int, dict[str, bytes]] = {}
    reads, read = itertools.count(), Path.read_bytes

    def reading(path: Path) -> bytes:
        if coming and (fresh := coming.pop(next(reads), None)):
            secret.swap(fresh)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", reading)
    return coming


def _whole(found: Certificates) -> dict[str, bytes]:
    return {"ca.crt": found.ca, "tls.key": found.key, "tls.crt": found.certificate}


@pytest.mark.parametrize("read", range(3))
def test_a_swap_between_two_reads_mixes_nothing(
    read: int, secret: MountedSecret, swaps: dict[int, dict[str, bytes]]
) -> None:
    files = CertificateFiles(secret.folder)
    fresh = NEW.files("sidecar")
    secret.swap(OLD.files("sidecar"))
    swaps[read] = fresh
    assert _whole(files.current()) == fresh
    assert not swaps
    assert files.problem == ""


def test_files_that_never_stand_still_keep_what_was_read(
    secret: MountedSecret, swaps: dict[int, dict[str, bytes]]
) -> None:
    files = CertificateFiles(secret.folder)
    before, fresh = files.current(), [NEW.files("sidecar") for _ in range(3)]
    secret.swap(OLD.files("sidecar"))
    # What is read is removed at once, so each of the three attempts ends with its first file.
    swaps.update(enumerate(fresh))
    assert files.current() is before
    assert files.problem == "the files change while they are read"
    assert _whole(files.current()) == fresh[-1]
    assert files.problem == ""


@pytest.mark.parametrize(
    ("valid", "line"), [(PAST, "tls.crt expired on"), (FUTURE, "tls.crt is not valid before")]
)
def test_a_start_with_a_pair_out_of_its_time_goes_on_and_says_so(
    valid: tuple[datetime.timedelta, datetime.timedelta],
    line: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What the arena holds is still loaded; who comes is refused by TLS itself."""
    secret = MountedSecret(tmp_path / "tls", OLD.files("sidecar", valid=valid))
    files = CertificateFiles(secret.folder)
    [said] = caplog.messages
    assert line in said
    secret.swap(OLD.files("sidecar"))
    assert files.current().expires_at > time.time()


@pytest.mark.parametrize("years", [0, 1, 22, 24, 200])
def test_the_times_are_those_that_the_certificate_names(years: int) -> None:
    """From 2050 on they are written in another form."""
    until = datetime.timedelta(days=365 * years + 1)
    _, pem = OLD.issue("x", valid=(AN_HOUR[0], until))
    expected = x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    assert expires_at(pem) == expected


def test_the_authority_is_good_for_as_long_as_its_last_certificate(tmp_path: Path) -> None:
    bundle = OLD.certificate + NEW.certificate
    secret = MountedSecret(tmp_path / "tls", {**OLD.files("sidecar"), "ca.crt": bundle})
    ends = [expires_at(each.certificate) for each in (OLD, NEW)]
    assert CertificateFiles(secret.folder).current().authority_expires_at == max(ends)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    files = OLD.files("sidecar")
    key = serialization.load_pem_private_key(files["tls.key"], None)
    files["tls.key"] = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    secret = MountedSecret(tmp_path / "tls", files)
    with pytest.raises(CertificatesUnusable, match="is not in PEM form"):
        CertificateFiles(secret.folder)
