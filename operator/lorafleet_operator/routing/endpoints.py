"""Which engines the Services of an adapter name. Pure.

An engine is named while it serves the adapter's name, is ready as its pod says, and is not about to
let the adapter go. Who is silent serves nothing as far as anybody knows, but if no engine is known
to serve, those that were named and whose pods are ready stay: an operator that has just started,
or reaches no sidecar, must not cut everybody off.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from .names import Role, slice_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lorafleet_operator.cluster.reads import EnginePod

MOST_ENDPOINTS: Final = 100
"""Endpoints in one slice: larger ones cost every node more with each change."""


@dataclass(frozen=True)
class HttpRoute:
    """The HTTPRoute that an adapter wants."""

    gateway: str
    gateway_namespace: str
    section: str = ""
    hostname: str = ""
    model_header: str = ""
    """Header that holds the served name; "" to take every request to the host."""


@dataclass(frozen=True)
class Intent:
    """How one adapter is to be routed, as its last pass has decided."""

    namespace: str
    name: str
    uid: str
    served_name: str
    port: int
    """Port of vLLM's server in the engine pods."""
    leaving: frozenset[str] = frozenset()
    """Pods (UIDs) whose engines are about to let the adapter go."""
    trial: str = ""
    """Digest of the revision that some engines try while the others serve another; "" without one."""
    percent: int | None = None
    """Share of the requests that it gets; None for the share of engines."""
    split: bool = False
    """Whether trials get Services of their own, for an HTTPRoute to choose between."""
    http_route: HttpRoute | None = None

    @property
    def key(self) -> str:
        """`<namespace>/<name>` of the adapter."""
        return f"{self.namespace}/{self.name}"

    @property
    def roles(self) -> tuple[Role, ...]:
        """The Services that the adapter has."""
        return (Role.ADAPTER, Role.STABLE, Role.CANARY) if self.split else (Role.ADAPTER,)


@dataclass(frozen=True)
class Backend:
    """One engine that may serve the adapter."""

    pod: EnginePod
    heard: bool
    """Whether its sidecar is in contact and its vLLM serves."""
    digest: str = ""
    """Revision that answers to the served name, as far as the sidecar last said; "" if none does."""


@dataclass(frozen=True)
class Endpoint:
    """One address of a slice."""

    address: str
    pod: str
    uid: str
    namespace: str
    node: str = ""
    zone: str = ""
    ready: bool = True
    serving: bool = True
    terminating: bool = False

    @property
    def family(self) -> str:
        """IPv4 or IPv6."""
        return f"IPv{ip_address(self.address).version}"


def named(
    intent: Intent, backends: Iterable[Backend], before: Mapping[Role, Collection[str]]
) -> dict[Role, list[Endpoint]]:
    """Return what each of the adapter's Services names; `before`: the pods (UIDs) that it does now."""
    found = [each for each in backends if _can_be_named(each.pod.ip)]
    serving = [
        each
        for each in found
        if each.heard and each.digest and each.pod.running and each.pod.uid not in intent.leaving
    ]
    ready = [each for each in serving if each.pod.ready]
    stays = before.get(Role.ADAPTER, ())
    silent = [
        each
        for each in found
        if not each.heard and each.pod.running and each.pod.ready and each.pod.uid in stays
    ]
    going = [each for each in found if each.pod.terminating and each.pod.uid in stays]
    groups: dict[Role, list[Endpoint]] = {role: [] for role in intent.roles}
    for each in ready if serving else silent:
        for role in _roles(intent, each, before):
            groups[role].append(_endpoint(each.pod))
    for each in going:
        for role in intent.roles:
            if each.pod.uid in before.get(role, ()):
                groups[role].append(_endpoint(each.pod))
    return {role: sorted(each, key=lambda e: (e.pod, e.uid)) for role, each in groups.items()}


def _roles(
    intent: Intent, each: Backend, before: Mapping[Role, Collection[str]]
) -> tuple[Role, ...]:
    if not intent.split:
        return (Role.ADAPTER,)
    was = each.pod.uid in before.get(Role.CANARY, ())
    on_trial = each.digest == intent.trial if each.digest else was
    return (Role.ADAPTER, Role.CANARY if intent.trial and on_trial else Role.STABLE)


def weights(intent: Intent, groups: Mapping[Role, Collection[Endpoint]]) -> dict[Role, int]:
    """Return the share of requests for each Service that an HTTPRoute chooses between.

    A Service without engines gets none.
    """
    if not intent.split:
        return {Role.ADAPTER: 100}
    stable, canary = (sum(e.ready for e in groups[role]) for role in (Role.STABLE, Role.CANARY))
    if not canary or not stable:
        return {Role.STABLE: 0 if canary else 100, Role.CANARY: 100 if canary else 0}
    percent = intent.percent
    if percent is None:
        percent = round(100 * canary / (stable + canary))
    return {Role.STABLE: 100 - percent, Role.CANARY: percent}


def sliced(
    service: str, endpoints: Iterable[Endpoint], before: Mapping[str, Collection[str]]
) -> dict[str, list[Endpoint]]:
    """Return the endpoints by slice; `before`: the pods (UIDs) of the slices that there are.

    Who has a place keeps it, so that one engine's coming or going writes one slice. A Service has
    a first slice also while it names nobody.
    """
    where = {uid: name for name, uids in before.items() for uid in uids}
    slices: dict[str, list[Endpoint]] = {slice_name(service, "IPv4", 0): []}
    new = []
    for each in endpoints:
        name = where.get(each.uid, "")
        if name.startswith(slice_name(service, each.family, 0)[:-1]):
            slices.setdefault(name, []).append(each)
        else:
            new.append(each)
    for each in new:
        number = 0
        while len(slices.get(slice_name(service, each.family, number), ())) >= MOST_ENDPOINTS:
            number += 1
        slices.setdefault(slice_name(service, each.family, number), []).append(each)
    return slices


def _can_be_named(address: str) -> bool:
    """Return whether the API server takes the address in a slice: pods have others on laptops only."""
    if not address:
        return False
    found = ip_address(address)
    return not (found.is_loopback or found.is_link_local or found.is_unspecified)


def _endpoint(pod: EnginePod) -> Endpoint:
    return Endpoint(
        address=pod.ip,
        pod=pod.name,
        uid=pod.uid,
        namespace=pod.namespace,
        node=pod.node,
        zone=pod.zone,
        ready=pod.ready and not pod.terminating,
        serving=pod.ready,
        terminating=pod.terminating,
    )
