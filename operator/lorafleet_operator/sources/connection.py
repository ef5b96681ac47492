"""The one HTTP client of all sources: which addresses it connects to, how it follows redirects.

aiohttp, which kopf brings along anyway, because its connector shows us the very address that it
is about to connect to. That is what decides: a name that resolves to something else a moment
later, or a redirect to a literal address, cannot get around it. Proxies and cookies are off.
"""

from __future__ import annotations

import functools
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from lorafleet.errors import AccessDenied, PathNotAllowed, SourceUnavailable
from yarl import URL

from lorafleet_operator.sources import bounds

if TYPE_CHECKING:
    from collections.abc import Mapping

_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_DENIALS = frozenset((401, 403))
_BUFFER_BYTES = 1 << 20
_NO_ADDRESS = "leads to no address that http or https could have"


@dataclass(frozen=True)
class Target:
    """Where a request goes; neither part may reach a message or a log."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    """Credentials; sent to the origin of `url` only, never after a redirect to another."""


class Connection:
    """GET requests within the bounds; holds the connection pool of one source.

    `where` is the address for messages, without any secret.
    """

    def __init__(
        self,
        where: str,
        settings: bounds.SourceSettings,
        *,
        ca_bundle: str | None = None,
        ca_label: str = "",
        follow_redirects: bool = True,
    ) -> None:
        self.where = where
        self._settings = settings
        self._follow_redirects = follow_redirects
        self._tls = _default_tls() if ca_bundle is None else _tls_with(ca_bundle, ca_label)
        self._session: aiohttp.ClientSession | None = None

    async def aclose(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, target: Target, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Return the response after the redirects, to be closed by the caller; body unread.

        Raises `SourceUnavailable` if the server cannot be reached, `PathNotAllowed` for an
        address or redirect out of bounds, `AccessDenied` if a server refuses that a redirect led to. No foreign exception leaves: theirs may hold the URL.
        """
        url = self._checked(target.url)
        origin = url.origin()
        for _ in range(self._settings.max_redirects + 1):
            own = target.headers if url.origin() == origin else {}
            response = await self._request(url, {**headers, **own})
            redirects = response.status in _REDIRECTS and "Location" in response.headers
            if not redirects or not self._follow_redirects:
                if url.origin() != origin and response.status in _DENIALS:
                    response.close()
                    raise self._denied_elsewhere(response.status, url, target)
                return response
            response.close()
            url = self._redirected(url, response.headers["Location"])
        raise PathNotAllowed(f"{self.where}: more than {self._settings.max_redirects} redirects")

    async def next_bytes(self, response: aiohttp.ClientResponse) -> bytes:
        """Return what has arrived of the body, b"" at its end; `SourceUnavailable` if it broke."""
        try:
            return await response.content.readany()
        except TimeoutError:
            problem = f"no byte for {self._settings.stall_timeout_s:g} s"
        except aiohttp.ClientPayloadError:
            problem = "the answer broke off"
        except (aiohttp.ClientError, OSError):
            problem = "connection lost"
        raise SourceUnavailable(f"{self.where}: {problem}")

    def _denied_elsewhere(self, status: int, url: URL, target: Target) -> AccessDenied:
        """What another server refuses is not what the credentials were for."""
        hint = "; credentials are not sent there" if "Authorization" in target.headers else ""
        return AccessDenied(f"{status} from {url.host}, to which {self.where} redirects{hint}")

    def _redirected(self, url: URL, location: str) -> URL:
        try:
            there = url.join(URL(location, encoded=True))
        except ValueError:
            there = None
        if there is None:
            raise SourceUnavailable(f"{self.where}: redirects to an address that is none")
        if url.scheme == "https" and there.scheme != "https":
            raise PathNotAllowed(f"{self.where}: redirects from https to {there.scheme}")
        return self._checked(str(there))

    def _checked(self, text: str) -> URL:
        try:
            url = URL(text, encoded=True)
            if url.raw_host and not url.raw_host.isascii():
                url = url.with_host(url.raw_host)  # as it stands in names and certificates
            usable = bool(url.host) and url.port is not None
        except ValueError:
            url, usable = URL(), False
        if url.scheme not in ("http", "https") or not usable:
            raise PathNotAllowed(f"{self.where}: {_NO_ADDRESS}")
        if url.raw_user is not None or url.raw_password is not None:
            raise PathNotAllowed(f"{self.where}: user and password in a URL are not allowed")
        return url

    async def _request(self, url: URL, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        try:
            return await self._opened().get(url, headers=headers, allow_redirects=False)
        except (aiohttp.InvalidURL, UnicodeError):  # the latter of a name that none can be
            problem = None
        except aiohttp.ClientConnectorCertificateError as error:
            problem = f"certificate not trusted ({_one_line(error.certificate_error)})"
        except aiohttp.ClientConnectorError as error:
            # A bucket is called by its name: which server that is meant to be is not seen from it.
            server = f"{url.host}:{url.port}"
            problem = f"cannot connect to {server} ({_one_line(error.os_error)})"
        except TimeoutError:
            problem = "no answer in time"
        except aiohttp.ClientError as error:
            problem = f"broken answer ({type(error).__name__})"
        except OSError as error:
            problem = f"connection lost ({_one_line(error)})"
        # Outside of the handlers: a chained exception would carry the URL with its query.
        if problem is None:
            raise PathNotAllowed(f"{self.where}: {_NO_ADDRESS}")
        raise SourceUnavailable(f"{self.where}: {problem}")

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            settings = self._settings
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    ssl=self._tls,
                    socket_factory=self._socket,
                    # One address after the other, so that a forbidden one stops the attempt.
                    happy_eyeballs_delay=None,
                    limit_per_host=8,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=settings.connect_timeout_s,
                    sock_connect=settings.connect_timeout_s,
                    sock_read=settings.stall_timeout_s,
                ),
                # A transformed body has no ranges: we want the file's own bytes.
                headers={"Accept-Encoding": "identity", "User-Agent": "lorafleet"},
                auto_decompress=False,
                read_bufsize=_BUFFER_BYTES,
                trust_env=False,
            )
        return self._session

    def _socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol, _, address = address_info
        forbidden = bounds.forbidden_kind(address[0], self._settings)
        if forbidden is not None:
            raise PathNotAllowed(f"{self.where}: leads to a {forbidden} address, not allowed")
        return socket.socket(family=family, type=kind, proto=protocol)


@functools.cache
def _default_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def _tls_with(ca_bundle: str, label: str) -> ssl.SSLContext:
    """Trust the given authorities beside the system's."""
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(cadata=ca_bundle)
    except (ssl.SSLError, ValueError):
        usable = False
    else:
        usable = True
    if not usable:
        raise AccessDenied(f"{label} key caBundle holds no certificate in PEM form")
    return context


def _one_line(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.splitlines()[0]
    return type(error).__name__
