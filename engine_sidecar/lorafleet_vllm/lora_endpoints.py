"""vLLM's own endpoints that load and unload adapters are for this pod alone.

With VLLM_ALLOW_RUNTIME_LORA_UPDATING whoever reaches vLLM's port can load any folder that the engine
can read, under any name, and take away names of others; a NetworkPolicy cannot tell these paths
from those of requests. Where the plugin is, they answer to the pod's own loopback address and to
nobody else: the sidecar needs them on an engine whose vLLM the plugin does not know.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]

# Under any prefix: a root path may come before. The last are the same by SageMaker's names, which
# vLLM's --api-key does not even guard.
_LOADS: Final = re.compile(r".*/((un)?load_lora_adapter|adapters(/[^/]*)?)/*", re.DOTALL)
_LINE: Final = (
    "adapters of this engine are loaded by its sidecar: this endpoint is for its pod alone"
)
_BODY: Final = json.dumps(
    {"error": {"message": _LINE, "type": "Forbidden", "param": None, "code": 403}}
).encode()


def guarded(app: App) -> App:
    """Return the ASGI application `app` without these endpoints for other pods."""

    async def guard(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not refused(scope["path"], scope.get("client")):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": _BODY})

    return guard


def refused(path: str, client: tuple[str, int] | None) -> bool:
    """Return whether `client` may not use `path`. Nobody's address is that of a Unix socket."""
    if client is None or _LOADS.fullmatch(path) is None:
        return False
    try:
        address = ipaddress.ip_address(client[0])
    except ValueError:
        return True  # a proxy named somebody by another name
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return not address.is_loopback
