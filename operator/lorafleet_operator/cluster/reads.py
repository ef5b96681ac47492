"""From the API server's objects to what the operator works with.

Bodies arrive by kopf's watches; only Secrets are read by request, when a source needs one.
"""

from __future__ import annotations

import base64
import binascii
import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kubernetes.aio import client, config
from kubernetes.aio.config import kube_config
from lorafleet.errors import AccessDenied, SourceUnavailable

from lorafleet_operator.api import names
from lorafleet_operator.cluster.bounded import BoundedClient
from lorafleet_operator.cluster.requests import NoAnswer, ask, one_line, path
from lorafleet_operator.traffic import Said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    Get = Callable[[str], Awaitable[dict[str, Any]]]
    """Returns what the API server has at a path. Raises NoAnswer."""

METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""What to accept as an answer in place of the object."""
_NAMESPACES: Final = ("", "v1", "namespaces")
_SECRETS: Final = ("", "v1", "secrets")
_ZONE: Final = "topology.kubernetes.io/zone"
_ARENA: Final = "LORAFLEET_ARENA_BYTES"
_SIDECAR_PORT: Final = 7070
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


@dataclass(frozen=True)
class EnginePod:
    """The part of a pod that the operator reads; kept for every watched pod."""

    namespace: str
    name: str
    uid: str
    ip: str
    labels: tuple[tuple[str, str], ...]
    node: str = ""
    node_cordoned: bool = False
    """Whether the pod's node takes no new pods, as far as the operator may see nodes."""
    running: bool = True
    """Phase Running and not being deleted: its sidecar may be dialled."""
    ready: bool = field(default=False, compare=False)
    """Whether its condition Ready is True. Says who gets requests; changes no plan."""
    terminating: bool = False
    """Whether it is being deleted."""
    gated: bool = False
    """Whether the pod waits for the condition lorafleet.dev/warm before it counts as ready."""
    warm: Said | None = None
    """The pod condition lorafleet.dev/warm as it was last written."""
    starts_again: bool = True
    """Whether vLLM is started again when it ends (restartPolicy Always)."""
    sidecar: bool = True
    """Whether a container of the pod looks like a sidecar: no proof, but what explains its silence."""

    @property
    def key(self) -> str:
        """`<namespace>/<name>`."""
        return f"{self.namespace}/{self.name}"

    @property
    def zone(self) -> str:
        """The zone of the pod's node, "" if nobody says."""
        return dict(self.labels).get(_ZONE, "")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the pod carries all `labels`; no labels match nothing."""
        return bool(labels) and all(pair in self.labels for pair in labels.items())


def engine_pod(body: Mapping[str, Any]) -> EnginePod:
    """Return the pod that `body` describes."""
    metadata, status = body["metadata"], body.get("status") or {}
    spec = body.get("spec") or {}
    gates = {gate["conditionType"] for gate in spec.get("readinessGates") or ()}
    return EnginePod(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        ip=status.get("podIP") or "",
        labels=tuple(sorted((metadata.get("labels") or {}).items())),
        node=spec.get("nodeName") or "",
        running=status.get("phase") == "Running" and not metadata.get("deletionTimestamp"),
        ready=any(
            (each["type"], each["status"]) == ("Ready", "True")
            for each in status.get("conditions") or ()
        ),
        terminating=bool(metadata.get("deletionTimestamp")),
        gated=names.CONDITION_WARM in gates,
        warm=_warm_condition(status),
        starts_again=spec.get("restartPolicy", "Always") == "Always",
        sidecar=any(map(_is_sidecar, _containers(spec))),
    )


def _containers(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _is_sidecar(container: Mapping[str, Any]) -> bool:
    """Return whether it has the variable that the injection looks for too, or the usual port."""
    return any(each["name"] == _ARENA for each in container.get("env") or ()) or any(
        each["containerPort"] == _SIDECAR_PORT for each in container.get("ports") or ()
    )


def _warm_condition(status: Mapping[str, Any]) -> Said | None:
    for each in status.get("conditions") or ():
        if each["type"] == names.CONDITION_WARM:
            since = each.get("lastTransitionTime")
            return Said(
                open=each["status"] == "True",
                reason=each.get("reason") or "",
                message=each.get("message") or "",
                since=datetime.fromisoformat(since) if since else datetime.fromtimestamp(0, UTC),
            )
    return None


class NoCluster(RuntimeError):
    """Raised when neither a service account nor a kubeconfig names a cluster."""


class BrokenConfig(NoCluster):
    """Raised when there is a kubeconfig and it cannot be read."""


async def find_cluster() -> None:
    """Make this pod's service account, else KUBECONFIG, the place that new clients connect to.

    Raises NoCluster.
    """
    if _SERVICE_ACCOUNT.exists():
        try:
            config.load_incluster_config()
        except config.ConfigException as error:
            raise NoCluster(f"no cluster in the service account: {error}") from None
    else:
        await _load()


async def _load() -> None:
    """Read KUBECONFIG. Raises NoCluster."""
    listed = kube_config.KUBE_CONFIG_DEFAULT_LOCATION
    if not _one_exists(listed):
        # The client would write a line of its own, and then miss what no file has.
        raise NoCluster(
            f"no cluster in a service account or in KUBECONFIG: {listed!r} does not exist"
        )
    try:
        await config.load_kube_config()
    except config.ConfigException as error:
        text = " ".join(str(error).split())
        raise NoCluster(f"no cluster in a service account or in KUBECONFIG: {text}") from None
    except Exception as error:
        # The client reads what the file holds without looking: any error may come of any content.
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise BrokenConfig(f"KUBECONFIG cannot be read: {text}"[:500]) from None


def _one_exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)


async def connect() -> client.ApiClient:
    """Return a client for the cluster that `find_cluster` finds; raises NoCluster."""
    await find_cluster()
    return _client()


def _client() -> client.ApiClient:
    """Return a client for the cluster that was loaded. Raises BrokenConfig."""
    try:
        return BoundedClient()
    except (OSError, ValueError) as error:
        raise BrokenConfig(f"the kubeconfig's certificates cannot be used: {error}") from None


async def everything(get: Get, namespace: str, also: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the pools, adapters and grants of a namespace, as the API server gives them.

    As far as they may be read, there come too: adapters of namespaces that its grants name, grants
    of namespaces that own the names of these adapters (names.owner_of) and of those in `also`, and
    all these namespaces themselves. Raises NoAnswer.
    """
    found = await _all(get, namespace, names.POOL_PLURAL, names.POOL_KIND)
    adapters = await _all(get, namespace, names.ADAPTER_PLURAL, names.ADAPTER_KIND)
    grants = await _all(get, namespace, names.GRANT_PLURAL, names.GRANT_KIND)
    guests = {each["namespace"] for grant in grants for each in grant["spec"]["from"]}
    for guest in sorted(guests - {namespace}):
        with suppress(NoAnswer):
            adapters += await _all(get, guest, names.ADAPTER_PLURAL, names.ADAPTER_KIND)
    served = (each["spec"].get("servedName") or "" for each in adapters)
    owners = {*also, *map(names.owner_of, served)} - {"", namespace}
    for owner in sorted(owners):
        with suppress(NoAnswer):
            grants += await _all(get, owner, names.GRANT_PLURAL, names.GRANT_KIND)
    found += adapters
    for each in sorted({namespace, *guests, *owners}):
        with suppress(NoAnswer):
            read = await get(path(_NAMESPACES, name=each))
            metadata = {"name": each, "labels": read["metadata"].get("labels") or {}}
            found.append({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    return found + grants


async def _all(get: Get, namespace: str, plural: str, kind: str) -> list[dict[str, Any]]:
    answer = await get(path((names.GROUP, names.VERSION, plural), namespace))
    marks = {"apiVersion": names.API_VERSION, "kind": kind}
    return [{**item, **marks} for item in answer["items"]]


def getter(api: client.ApiClient) -> Get:
    """Return what `everything` reads with."""

    async def get(place: str) -> dict[str, Any]:
        with one_line(place.rpartition("/")[2]):
            return await ask(api, "GET", place)

    return get


@dataclass(frozen=True)
class Secret:
    """A Secret as it was read; `data` is None if there is none."""

    data: Mapping[str, bytes] | None = field(repr=False, default=None)
    version: str = ""
    """Its resourceVersion, "" if there is none."""


async def secret(api: client.ApiClient, namespace: str, name: str) -> Secret:
    """Return the decoded data of a Secret.

    Raises AccessDenied if the operator may not read it, SourceUnavailable without an answer.
    """
    try:
        with one_line(f"Secret {namespace}/{name}"):
            found = await ask(api, "GET", path(_SECRETS, namespace, name))
    except NoAnswer as error:
        if error.status == 404:
            return Secret()
        if error.status == 403:
            raise AccessDenied(
                f"the operator may not read Secret {namespace}/{name}: its role in the namespace "
                "lacks get on secrets"
            ) from None
        raise SourceUnavailable(str(error)) from None
    decoded = {}
    for key, value in (found.get("data") or {}).items():
        try:
            decoded[key] = base64.b64decode(value, validate=True)
        except binascii.Error:
            continue
    return Secret(decoded, found["metadata"]["resourceVersion"])


async def secret_version(api: client.ApiClient, namespace: str, name: str) -> str:
    """Return what `secret` would tell as version; the content is not asked for.

    Raises NoAnswer, also while the operator may not read it.
    """
    place = path(_SECRETS, namespace, name)
    try:
        with one_line(f"Secret {namespace}/{name}"):
            found = await ask(api, "GET", place, accept=METADATA_ONLY, seconds=10.0)
    except NoAnswer as error:
        if error.status == 404:
            return ""
        raise
    return str(found["metadata"]["resourceVersion"])


async def first_adapter(api: client.ApiClient, namespaces: tuple[str, ...]) -> None:
    """List one adapter in each namespace (or the cluster): proof that the API server answers."""
    adapters = (names.GROUP, names.VERSION, names.ADAPTER_PLURAL)
    for namespace in namespaces or ("",):
        await ask(api, "GET", path(adapters, namespace), query={"limit": "1"})
