"""One watched connection per engine pod: the latest inventory, and when the sidecar last spoke.

A link is the operator's view of one engine. It says nothing that the sidecar did not say: after
a lost connection the last inventory stays, with `problem` telling why it may be old.
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, Final

from lorafleet.errors import EngineUnreachable, LorafleetError
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.transfer.client import SidecarClient, Tls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from lorafleet.certificates import CertificateFiles
    from lorafleet.profile import EngineProfile

RENEWAL_SPREAD_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 10.0
"""Deadline for the small questions: inventory and profile."""
_TAKES_ORDERS: Final = (pb.ENGINE_HEALTH_READY, pb.ENGINE_HEALTH_STOCK)
_MOST_DIGESTS: Final = 4096
"""A source that is written again and again with one content has a fingerprint each time."""
_SPARE_DIGESTS: Final = 64
_RETRY_FIRST: Final = 0.2
_RETRY_LIMIT: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


class _Renewed(Exception):
    """The watch is to begin anew over a connection with renewed certificates."""


@dataclass(frozen=True)
class Endpoint:
    """Where the sidecar of one engine pod listens, and which pod it has to be."""

    pod: str
    """`<namespace>/<name>`, for messages."""
    uid: str
    host: str
    port: int
    server_name: str = ""
    """Name that its certificate must carry; empty: the host."""


class EngineLink:
    """The watched connection to one sidecar.

    `on_change(link, previous)` is called after each new inventory, each loss or return of contact
    and each new profile; `previous` is the inventory before it, None after a return.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        certificates: CertificateFiles | None = None,
        heartbeat_seconds: float,
        on_change: Callable[[EngineLink, pb.Inventory | None], None],
        share: Callable[[EngineProfile], EngineProfile] = lambda profile: profile,
    ) -> None:
        self.endpoint = endpoint
        self._share = share
        self._certificates = certificates
        self._tls = self._tls_now()
        self.client = SidecarClient(endpoint.host, endpoint.port, self._tls, pod_uid=endpoint.uid)
        self.renewal = asyncio.Event()
        """Set when the certificates may have changed: a connection with the new ones is made."""
        self.inventory: pb.Inventory | None = None
        self.profile: EngineProfile | None = None
        self.profile_problem = ""
        """Why the sidecar's answer is no profile; empty while it has none, which its health says."""
        self.digests: dict[str, str] = {}
        """Fingerprint -> digest from commits: an inventory names one source for each revision."""
        self.problem = f"sidecar at {self.client.address} has not answered yet"
        self.heard_at = asyncio.get_running_loop().time()
        self.tried = asyncio.Event()
        """Set after the first answer or the first failure: before that nothing is known."""
        self._since = self.heard_at
        self._well_at: float | None = None
        self._heartbeat_seconds = heartbeat_seconds
        self._on_change = on_change
        self._profile_of: tuple[str, int] | None = None

    @property
    def in_contact(self) -> bool:
        """Whether the inventory is current."""
        return not self.problem

    def silence(self) -> float:
        """Return the seconds since the sidecar last answered (or since the link exists)."""
        return asyncio.get_running_loop().time() - self.heard_at

    def ill_for(self) -> float:
        """Return the seconds since the engine last took orders, infinite if it never did."""
        if self._well_at is None:
            return float("inf")
        return asyncio.get_running_loop().time() - self._well_at

    def away_for(self) -> float:
        """Return the seconds since the engine last took orders, or since there is this link."""
        well_at = self._since if self._well_at is None else self._well_at
        return asyncio.get_running_loop().time() - well_at

    async def run(self) -> None:
        """Watch for ever; connections are opened again with growing delays."""
        delay = _RETRY_FIRST
        while True:
            heard = self.heard_at
            problem = f"sidecar at {self.client.address} ended the watch"
            renewed = False
            try:
                if (tls := self._tls_now()) != self._tls:
                    self._tls = tls
                    self.client.use(tls)
                await self._follow()
            except* _Renewed:
                renewed = True
            except* LorafleetError as errors:
                problem = str(errors.exceptions[0])
            if renewed:
                continue  # nothing was lost: the new connection has answered
            self._lost(problem)
            delay = _RETRY_FIRST if self.heard_at > heard else min(delay * 2, _RETRY_LIMIT)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    async def refresh(self) -> None:
        """Ask for the inventory now. Raises EngineUnreachable, and notes the loss of contact."""
        try:
            self._accept(await self.client.inventory(ANSWER_SECONDS))
            await self._learn_profile()
        except LorafleetError as error:
            self._lost(str(error))
            raise

    def learn(self, fingerprint: str, digest: str) -> None:
        """Note what a commit said. Notes of what is staged no more go, and the oldest of too many:
        one that is missed costs a question."""
        self.digests[fingerprint] = intern(digest)  # each engine's answer has a copy of its own
        staged = {each.digest for each in self.inventory.staged} if self.inventory else set()
        if len(self.digests) > _SPARE_DIGESTS + 2 * len(staged):
            for known, noted in list(self.digests.items()):
                if noted not in staged and known != fingerprint:
                    del self.digests[known]
        while len(self.digests) > _MOST_DIGESTS:
            del self.digests[next(iter(self.digests))]

    async def close(self) -> None:
        """Close the connection."""
        await self.client.close()

    def _tls_now(self) -> Tls | None:
        if self._certificates is None:
            return None
        return Tls(self._certificates.current(), self.endpoint.server_name)

    async def _renew(self) -> None:
        """Move to a connection with renewed certificates once it has answered.

        A sidecar that does not know a new authority yet keeps the connection it has: it is asked
        again until it does. Raises _Renewed.
        """
        told = False
        while True:
            await self.renewal.wait()
            self.renewal.clear()
            while (tls := self._tls_now()) is not None and tls != self._tls:
                # A thousand engines need not make a thousand handshakes in one moment.
                await asyncio.sleep(random.uniform(0, RENEWAL_SPREAD_SECONDS))  # noqa: S311
                try:
                    await self.client.renew(tls, ANSWER_SECONDS)
                except LorafleetError as error:
                    if not told:
                        _LOG.warning(
                            "%s does not take the renewed certificates yet, the connection with "
                            "the earlier ones stays: %s", self.endpoint.pod, error,
                        )  # fmt: skip
                    told = True
                    await asyncio.sleep(RENEWAL_SPREAD_SECONDS)
                    continue
                self._tls = tls
                raise _Renewed

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._beat())]
            if self._certificates is not None:
                beside.append(group.create_task(self._renew()))
            first = True
            async for inventory in self.client.watch():
                self._accept(inventory, restart=first)
                first = False
                await self._learn_profile()
            for task in beside:
                task.cancel()

    async def _beat(self) -> None:
        """Ask after each silence: a stream to a dead node stays silent for a long time."""
        while True:
            await asyncio.sleep(max(0.05, self._heartbeat_seconds - self.silence()))
            if self.silence() >= self._heartbeat_seconds:
                self._accept(await self.client.inventory(ANSWER_SECONDS))
                await self._learn_profile()

    def _accept(self, inventory: pb.Inventory, *, restart: bool = False) -> None:
        if inventory.pod_uid != self.endpoint.uid:
            raise EngineUnreachable(
                f"sidecar at {self.client.address} is pod uid {inventory.pod_uid or '(none)'}, "
                f"expected {self.endpoint.uid} of {self.endpoint.pod}"
            )
        self.heard_at = asyncio.get_running_loop().time()
        previous, had_contact = self.inventory, self.in_contact
        self.problem = ""
        if inventory.health in _TAKES_ORDERS:
            self._well_at = self.heard_at
        # Two calls may overtake each other; a sidecar that restarts begins to count anew.
        if not restart and previous is not None and inventory.sequence < previous.sequence:
            return
        self.inventory = inventory
        if inventory != previous or not had_contact:
            self._on_change(self, previous if had_contact else None)

    async def _learn_profile(self) -> None:
        assert self.inventory is not None
        version = (self.inventory.engine_instance, self.inventory.health)
        if version == self._profile_of and self.profile is not None:
            return
        try:
            profile = await self.client.profile(ANSWER_SECONDS)
        except EngineUnreachable:
            # Before vLLM was ever up there is no profile: the health says so already.
            self._profile_of, self.profile_problem = None, ""
            return
        except LorafleetError as error:
            self._profile_of, known = None, self.profile_problem
            self.profile_problem = str(error)
            if self.profile_problem != known:
                self._on_change(self, None)
            return
        finally:
            self.tried.set()
        self._profile_of = version
        if profile != self.profile or self.profile_problem:
            self.profile, self.profile_problem = self._share(profile), ""
            self._on_change(self, self.inventory)

    def _lost(self, problem: str) -> None:
        had_contact, self.problem = self.in_contact, problem
        first = not self.tried.is_set()
        self.tried.set()
        if had_contact or first:
            self._on_change(self, self.inventory)


class Links:
    """All links, by pod UID."""

    def __init__(
        self,
        *,
        certificates: CertificateFiles | None = None,
        renewal_seconds: float = 5.0,
        heartbeat_seconds: float,
        on_change: Callable[[EngineLink, pb.Inventory | None], None],
    ) -> None:
        self._certificates = certificates
        self._renewal_seconds = renewal_seconds
        self._renewing: asyncio.Task[None] | None = None
        self._heartbeat_seconds = heartbeat_seconds
        self._on_change = on_change
        self._links: dict[str, EngineLink] = {}
        self._tasks: dict[EngineLink, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def get(self, uid: str) -> EngineLink | None:
        """Return the link to the pod, None if there is none."""
        return self._links.get(uid)

    def all(self) -> list[EngineLink]:
        """Return every link."""
        return list(self._links.values())

    def sync(self, wanted: Iterable[Endpoint], living: Collection[str]) -> None:
        """Open and close links so that they match `wanted`.

        A link to a pod that left every pool stays while the pod lives (`living` holds UIDs) and
        has adapters loaded: they still have to be unloaded there.
        """
        if self._certificates is not None and self._renewing is None:
            self._renewing = asyncio.create_task(self._renew(self._certificates))
        by_uid = {endpoint.uid: endpoint for endpoint in wanted}
        for uid, link in list(self._links.items()):
            leftover = uid in living and link.inventory is not None and link.inventory.loaded
            keep = by_uid.get(uid) == link.endpoint or (uid not in by_uid and leftover)
            if not keep:
                self._close(uid)
        for uid, endpoint in by_uid.items():
            if uid not in self._links:
                link = EngineLink(
                    endpoint,
                    certificates=self._certificates,
                    heartbeat_seconds=self._heartbeat_seconds,
                    on_change=self._on_change,
                    share=self._share,
                )
                self._links[uid] = link
                self._tasks[link] = asyncio.create_task(link.run(), name=f"link {endpoint.pod}")

    async def close(self) -> None:
        """Close all links."""
        if self._renewing is not None:
            self._renewing.cancel()
        for uid in list(self._links):
            self._close(uid)
        await asyncio.gather(*self._closing)

    def shared(self, link: EngineLink) -> bool:
        """Return whether another engine has the same profile."""
        return any(
            other is not link and other.profile is link.profile for other in self._links.values()
        )

    def _share(self, profile: EngineProfile) -> EngineProfile:
        """Return the same profile as an engine of its kind has: profiles are large, kinds few."""
        same = (link.profile for link in self._links.values() if link.profile == profile)
        return next(same, None) or profile

    async def _renew(self, certificates: CertificateFiles) -> None:
        """Tell all links when the files have changed."""
        seen = certificates.current()
        while True:
            await asyncio.sleep(self._renewal_seconds)
            if (found := certificates.current()) is not seen:
                seen = found
                for link in self._links.values():
                    link.renewal.set()

    def _close(self, uid: str) -> None:
        link = self._links.pop(uid)
        task = self._tasks.pop(link)
        closing = asyncio.create_task(_end(link, task))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


async def _end(link: EngineLink, task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await link.close()
