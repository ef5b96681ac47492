"""The control socket's routes: JSON in, JSON out, one line of text for what was refused."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from lorafleet.errors import LorafleetError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.routing import Route

from lorafleet_vllm.keeping import GPU, SHARED
from lorafleet_vllm.refused import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

    from lorafleet_vllm.control import Control

_log = logging.getLogger("vllm.lorafleet")
MAX_BODY_BYTES = 64 * 1024
Body = dict[str, Any]


def application(control: Control) -> Starlette:
    """Return the ASGI application over `control`."""

    async def state(_: Body) -> Body:
        return await control.state()

    async def handshake(_: Body) -> Body:
        return control.handshake()

    async def profile(_: Body) -> Body:
        return await control.profile()

    async def load(body: Body) -> Body:
        text = (_text(body, key) for key in ("served_name", "digest", "loader"))
        return await control.load(*text)

    async def verify(body: Body) -> Body:
        return await control.verify(_number(body, "lora_int_id"))

    async def publish(body: Body) -> Body:
        return control.publish(_text(body, "served_name"), _number(body, "lora_int_id"))

    async def wanted(body: Body) -> Body:
        return await control.first_requests.wanted(_number(body, "seen"))

    async def refuse(body: Body) -> Body:
        line = _text(body, "message")
        return control.refuse(_text(body, "served_name"), _number(body, "status"), line)

    async def unpublish(body: Body) -> Body:
        return control.unpublish(_text(body, "served_name"))

    async def pin(body: Body) -> Body:
        if not isinstance(body.get("pinned"), bool):
            raise Refused("pinned must be true or false", 400)
        return await control.keep(_number(body, "lora_int_id"), GPU if body["pinned"] else SHARED)

    async def keep(body: Body) -> Body:
        if not isinstance(body.get("residency"), str):
            raise Refused("residency must be a string", 400)
        return await control.keep(_number(body, "lora_int_id"), body["residency"])

    async def abort(body: Body) -> Body:
        return await control.abort(_number(body, "lora_int_id"))

    async def unload(body: Body) -> Body:
        return await control.unload(_number(body, "lora_int_id"))

    async def shutdown(body: Body) -> Body:
        if not isinstance(body.get("force"), bool):
            raise Refused("force must be true or false", 400)
        return control.shutdown(_text(body, "instance"), force=body["force"])

    reads = {"handshake": handshake, "profile": profile, "state": state}
    writes = {
        "load": load,
        "verify": verify,
        "publish": publish,
        "wanted": wanted,
        "refuse": refuse,
        "unpublish": unpublish,
        "pin": pin,
        "abort": abort,
        "keep": keep,
        "unload": unload,
        "shutdown": shutdown,
    }
    routes = [
        Route(f"/v1/{name}", _endpoint(call), methods=["GET"]) for name, call in reads.items()
    ]
    routes += [
        Route(f"/v1/{name}", _endpoint(call), methods=["POST"]) for name, call in writes.items()
    ]
    return Starlette(routes=routes)


def _endpoint(call: Callable[[Body], Awaitable[Body]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            body = await _body(request) if request.method == "POST" else {}
            return JSONResponse(await call(body))
        except ClientDisconnect:
            return JSONResponse({}, 499)  # nobody reads it
        except Refused as error:
            return JSONResponse({"error": _line(error)}, error.status)
        except LorafleetError as error:
            return JSONResponse({"error": _line(error)}, 422)
        except Exception as error:
            _log.exception("lorafleet: %s failed", request.url.path)
            return JSONResponse({"error": _line(error)}, 500)

    return endpoint


async def _body(request: Request) -> Body:
    data = b""
    async for part in request.stream():
        data += part
        if len(data) > MAX_BODY_BYTES:
            raise Refused(f"the body is above {MAX_BODY_BYTES} bytes", 413)
    try:
        body = json.loads(data)
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}", 400) from None
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object", 400)
    return body


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or not value:
        raise Refused(f"{key} must be a non-empty string", 400)
    return value


def _number(body: Body, key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused(f"{key} must be an integer", 400)
    return value


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or f"{type(error).__name__} (no text)"
