"""Who a token belongs to, and what that account may do: both are the API server's to say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError
from kubernetes.aio import client
from lorafleet.errors import AccessDenied, SourceUnavailable

from lorafleet_operator.api import names
from lorafleet_operator.cluster.requests import ask, path

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOKENS: Final = ("authentication.k8s.io", "v1", "tokenreviews")
_ACCESS: Final = ("authorization.k8s.io", "v1", "subjectaccessreviews")
_SECONDS: Final = 10.0
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"


@dataclass(frozen=True)
class Account:
    """Whose token it is, as the API server told."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def side(self) -> str:
        """Who answers for what it does: its namespace, or for no service account itself."""
        if not self.user.startswith(_SERVICE_ACCOUNT):
            return self.user
        return f"namespace {self.user.removeprefix(_SERVICE_ACCOUNT).partition(':')[0]}"


async def account(api: client.ApiClient, token: str, audience: str) -> Account:
    """Return whose token it is. Raises AccessDenied for one that is not valid for `audience`.

    Expired ones, revoked ones and those of deleted accounts are not valid. Raises
    SourceUnavailable when the API server does not say.
    """
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [audience]},
    }
    status = (await _asked(api, _TOKENS, body)).get("status") or {}
    if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
        raise AccessDenied(f"the token is not valid for audience {audience}")
    user = status.get("user") or {}
    return Account(
        user=user.get("username") or "",
        uid=user.get("uid") or "",
        groups=tuple(user.get("groups") or ()),
        extra=user.get("extra") or {},
    )


async def check_access(
    api: client.ApiClient,
    who: Account,
    verb: str,
    *,
    namespace: str,
    resource: str = names.ADAPTER_PLURAL,
    name: str = "",
    subresource: str = "",
) -> None:
    """Raise AccessDenied unless the account may do that to our resources of the namespace."""
    attributes = {
        "group": names.GROUP,
        "resource": resource,
        "verb": verb,
        "namespace": namespace,
        "name": name,
        "subresource": subresource,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": who.user,
            "uid": who.uid,
            "groups": list(who.groups),
            "extra": dict(who.extra),
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        },
    }
    status = (await _asked(api, _ACCESS, body)).get("status") or {}
    if not status.get("allowed"):
        what = f"{resource}/{subresource}" if subresource else resource
        raise AccessDenied(f"{who.user} may not {verb} {what} in namespace {namespace}")


async def _asked(
    api: client.ApiClient, kind: tuple[str, str, str], body: dict[str, Any]
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_SECONDS):  # the client's own begins when it is its turn
            return await ask(api, "POST", path(kind), body, seconds=_SECONDS)
    except client.ApiException as error:
        if error.status == 403:
            raise SourceUnavailable(f"the operator may not create {kind[2]}") from None
        raise SourceUnavailable(f"{kind[2]}: the API server said {error.status}") from None
    except (ClientError, TimeoutError) as error:
        raise SourceUnavailable(f"{kind[2]}: the API server does not answer: {error}") from None
    except ValueError:
        raise SourceUnavailable(f"{kind[2]}: the API server's answer is no JSON") from None
