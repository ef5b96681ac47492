"""One watched connection per engine pod: the latest inventory, and when the sidecar last spoke.

A link is the operator's view of one engine. It says nothing that the sidecar did not say: after
a lost connection the last inventory stays, with `problem` telling why it may be old.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from sys import intern
from typing import TYPE_CHECKING, Final

from lorafleet.errors import EngineUnreachable, LorafleetError
from lorafleet.v1alpha1 import sidecar_pb2 as pb

from lorafleet_operator.transfer.client import SidecarClient, Tls

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from lorafleet.profile import EngineProfile

ANSWER_SECONDS: Final = 10.0
"""Deadline for the small questions: inventory and profile."""
_TAKES_ORDERS: Final = (pb.ENGINE_HEALTH_READY, pb.ENGINE_HEALTH_STOCK)
_MOST_DIGESTS: Final = 4096
"""A source that is written again and again with one content has a fingerprint each time."""
_SPARE_DIGESTS: Final = 64
_RETRY_FIRST: Final = 0.2
_RETRY_LIMIT: Final = 10.0


@dataclass(frozen=True)
class Endpoint:
    """Where the sidecar of one engine pod listens, and which pod it has to be."""

    pod: str
    """`<namespace>/<name>`, for messages."""
    uid: str
    host: str
    port: int


class EngineLink:
    """The watched connection to one sidecar.

    `on_change(link, previous)` is called after each new inventory, each loss or return of contact
    and each new profile; `previous` is the inventory before it, None after a return.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        read_tls: Callable[[], Tls | None],
        heartbeat_seconds: float,
        on_change: Callable[[EngineLink, pb.Inventory | None], None],
        share: Callable[[EngineProfile], EngineProfile] = lambda profile: profile,
    ) -> None:
        self.endpoint = endpoint
        self._share = share
        self._read_tls = read_tls
        self._tls = read_tls()
        self.client = SidecarClient(endpoint.host, endpoint.port, self._tls, pod_uid=endpoint.uid)
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

    async def run(self) -> None:
        """Watch for ever; connections are opened again with growing delays."""
        delay = _RETRY_FIRST
        while True:
            heard = self.heard_at
            problem = f"sidecar at {self.client.address} ended the watch"
            try:
                await self._renew_certificates()
                await self._follow()
            except* LorafleetError as errors:
                problem = str(errors.exceptions[0])
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

    async def _renew_certificates(self) -> None:
        """Connect with the files as they are now: certificates live shorter than operators."""
        tls = self._read_tls()
        if tls != self._tls:
            old, self._tls = self.client, tls
            self.client = SidecarClient(
                self.endpoint.host, self.endpoint.port, tls, pod_uid=self.endpoint.uid
            )
            await old.close()

    async def _follow(self) -> None:
        async with asyncio.TaskGroup() as group:
            heart = group.create_task(self._beat())
            first = True
            async for inventory in self.client.watch():
                self._accept(inventory, restart=first)
                first = False
                await self._learn_profile()
            heart.cancel()

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
        read_tls: Callable[[], Tls | None] = lambda: None,
        heartbeat_seconds: float,
        on_change: Callable[[EngineLink, pb.Inventory | None], None],
    ) -> None:
        self._read_tls = read_tls
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
                    read_tls=self._read_tls,
                    heartbeat_seconds=self._heartbeat_seconds,
                    on_change=self._on_change,
                    share=self._share,
                )
                self._links[uid] = link
                self._tasks[link] = asyncio.create_task(link.run(), name=f"link {endpoint.pod}")

    async def close(self) -> None:
        """Close all links."""
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
