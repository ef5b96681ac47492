"""The base of the images, put together from Debian's packages: libc, Python, certificates.

Nothing is executed for it, so that no maintainer script, shell or package manager has to be in it.
The lists of the packages stay where scanners look in images of this kind: /var/lib/dpkg/status.d.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from imaging.layout import USER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PACKAGES = (
    "base-files",
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    "netbase",
    "python3.11-minimal",
    "zlib1g",
)
"""Python 3.11 and what its modules that we use are linked with. Debian 12."""

_LEFT_OUT = (
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/info",
    "usr/share/bug",
    "usr/share/gcc",
    "usr/share/gdb",
    "usr/share/base-files",
    "usr/lib/x86_64-linux-gnu/gconv",
    "usr/lib/python3.11/lib2to3",
    "usr/lib/python3.11/pydoc_data",
    "usr/sbin",
    "etc/ca-certificates",
)
_MERGED = ("bin", "lib", "lib64", "sbin")
"""Folders that are links into /usr."""
_AUTHORITIES = "usr/share/ca-certificates/"
_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
_FOLDERS = {"tmp": 0o1777, "proc": 0o755, "sys": 0o755, "dev": 0o755, "run": 0o755, "app": 0o755}
_PASSWD = (
    f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/tmp:/sbin/nologin\n"
)
_GROUP = f"root:x:0:\nnonroot:x:{USER}:\n"
_NAMES = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"


class PackagesFailed(RuntimeError):
    """Raised when Debian's packages cannot be had; one line."""


def write_base(target: Path, packages: Sequence[str] = PACKAGES) -> None:
    """Write the base's root folder as the tar archive `target`."""
    with tempfile.TemporaryDirectory(prefix="lorafleet-base-") as folder:
        archives = _download(Path(folder), packages)
        partial = target.with_suffix(".partial")
        with tarfile.open(partial, "w", format=tarfile.GNU_FORMAT) as out:
            _write(out, archives)
        partial.rename(target)


def _download(folder: Path, packages: Sequence[str]) -> list[Path]:
    folder.chmod(0o755)
    download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *packages]
    for command in (download, ["apt-get", "update"], download):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode == 0 and command is download:
            return sorted(folder.glob("*.deb"))
    lines = done.stderr.strip().splitlines() or ["no reason given"]
    raise PackagesFailed(f"apt-get download: {lines[-1]}")


def _write(out: tarfile.TarFile, archives: list[Path]) -> None:
    seen: set[str] = set()
    for name in _MERGED:
        _add(out, seen, name, link=f"usr/{name}")
    for name, mode in _FOLDERS.items():
        _add(out, seen, name, mode=mode)
    authorities: list[bytes] = []
    for archive in archives:
        for member, content in _files_of(archive):
            path = placed(member.name)
            if path is None or path in seen:
                continue
            if path.startswith(_AUTHORITIES) and path.endswith(".crt"):
                authorities.append(content)
                continue
            seen.add(path)
            member.name = path
            member.mtime = 0
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            # Nobody changes users in a container that may not gain privileges.
            member.mode &= 0o1777
            if member.islnk():
                member.linkname = placed(member.linkname) or member.linkname
            out.addfile(member, io.BytesIO(content))
        name, control = _control(archive)
        _add(out, seen, f"var/lib/dpkg/status.d/{name}", content=control)
    _add(out, seen, _BUNDLE, content=b"".join(authorities))
    _add(out, seen, "usr/lib/ssl/cert.pem", link=f"/{_BUNDLE}")  # where OpenSSL looks
    for name, text in (("passwd", _PASSWD), ("group", _GROUP), ("nsswitch.conf", _NAMES)):
        _add(out, seen, f"etc/{name}", content=text.encode())


def placed(name: str) -> str | None:
    """Where a package's file comes to lie; None if it is left out."""
    path = PurePosixPath(name.removeprefix("./"))
    if str(path) in (".", *_MERGED):
        return None
    if path.parts[0] in _MERGED:
        path = PurePosixPath("usr") / path
    if any(path.is_relative_to(folder) for folder in _LEFT_OUT):
        return None
    if path.is_relative_to("usr/share/doc") and path.name != "copyright":
        return None
    return str(path)


def _files_of(archive: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The package's files, folders left out: they come by themselves."""
    files = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", archive], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(files)) as tar:
        for member in tar:
            if not member.isdir():
                source = tar.extractfile(member) if member.isreg() else None
                yield member, source.read() if source else b""


def _control(archive: Path) -> tuple[str, bytes]:
    """The package's name and its entry for the list of packages."""
    text = subprocess.run(["dpkg-deb", "--field", archive], check=True, capture_output=True).stdout
    name = text.decode().split("Package: ", 1)[1].split("\n", 1)[0]
    return name, text


def _add(
    out: tarfile.TarFile,
    seen: set[str],
    name: str,
    *,
    content: bytes | None = None,
    mode: int = 0o644,
    link: str = "",
) -> None:
    """Add a file with `content`, a link, or a folder."""
    seen.add(name)
    member = tarfile.TarInfo(name)
    member.mode = mode
    if link:
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, link, 0o777
    elif content is None:
        member.type = tarfile.DIRTYPE
    else:
        member.size = len(content)
    out.addfile(member, io.BytesIO(content or b""))
