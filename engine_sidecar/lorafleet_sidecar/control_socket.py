"""Client of the plugin's control socket (docs/architecture.md, "The plugin's control socket")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
from lorafleet.errors import EngineRejected, EngineUnreachable
from lorafleet.profile import EngineProfile

from lorafleet_sidecar.engine_answers import ask
from lorafleet_sidecar.observed import EngineState, Handshake

if TYPE_CHECKING:
    from pathlib import Path

# The handshake is answered from memory; a plugin that needs longer is stuck.
_READ_SECONDS = 5.0
# State and profile ask the workers, which answer between two steps: behind a long prefill or
# another load that takes a while and is no sign of trouble.
_WORKER_SECONDS = 60.0
_CONFLICT = 409


class ControlSocket:
    """Speaks to the plugin inside vLLM's API server.

    Every method raises EngineUnreachable when nobody answers (the outcome of a write is then
    unknown: read `state` before the next step) and EngineRejected with the plugin's own text.
    """

    def __init__(self, volume: Path, load_seconds: float) -> None:
        self._volume = volume
        self._load_seconds = load_seconds
        self._path = volume / "run" / "engine.sock"
        self._listening = False
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self._path)),
            base_url="http://engine",
            timeout=_READ_SECONDS,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def listening(self) -> bool:
        """Whether the last call found somebody listening (who may have failed to answer)."""
        return self._listening

    async def handshake(self) -> Handshake:
        """Return who answers on the socket."""
        raw = await self._call("GET", "/v1/handshake")
        try:
            return Handshake.from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise EngineRejected(f"plugin's handshake cannot be read: {error!r}") from error

    async def profile(self) -> EngineProfile:
        """Return what the engine can take, as the plugin reads it from the model."""
        response = await self._request("GET", "/v1/profile", None, _WORKER_SECONDS)
        try:
            return EngineProfile.from_json(response.text)
        except ValueError as error:
            raise EngineRejected(f"engine sent a profile that cannot be read: {error}") from error

    async def state(self) -> EngineState:
        """Return served names, loaded revisions and the workers' counters."""
        raw = await self._call("GET", "/v1/state", None, _WORKER_SECONDS)
        try:
            return EngineState.from_json(raw, self._volume)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineRejected(f"plugin's state cannot be read: {error!r}") from error

    async def load(self, served_name: str, digest: str, loader: str) -> int:
        """Load a staged revision under a new id, not yet served; return the id."""
        body = {"served_name": served_name, "digest": digest, "loader": loader}
        answer = await self._call("POST", "/v1/load", body, self._load_seconds)
        if not isinstance(answer.get("lora_int_id"), int):
            raise EngineRejected("plugin loaded the revision but named no lora_int_id")
        return int(answer["lora_int_id"])

    async def verify(self, lora_int_id: int) -> None:
        """Have the workers prove that a loaded id is what was staged, bit by bit.

        Raises EngineRejected with the first module that differs.
        """
        body = {"lora_int_id": lora_int_id}
        answer = await self._call("POST", "/v1/verify", body, self._load_seconds)
        if answer.get("verified") is not True:
            raise EngineRejected("plugin neither verified nor refused the revision")

    async def publish(self, served_name: str, lora_int_id: int) -> int | None:
        """Point `served_name` at a loaded id in one assignment; return the previous id."""
        body = {"served_name": served_name, "lora_int_id": lora_int_id}
        return _previous(await self._call("POST", "/v1/publish", body))

    async def unpublish(self, served_name: str) -> int | None:
        """Hide `served_name`; return the id that it pointed at."""
        return _previous(await self._call("POST", "/v1/unpublish", {"served_name": served_name}))

    async def keep(self, lora_int_id: int, residency: str) -> None:
        """Let the engine keep an id as `residency` says (desired.py)."""
        body = {"lora_int_id": lora_int_id, "residency": residency}
        await self._call("POST", "/v1/keep", body, self._load_seconds)

    async def wanted(self, seen: int) -> tuple[int, list[str]]:
        """Return the names that requests wait for as soon as they are not those of sequence `seen`.

        The same ones after a while.
        """
        answer = await self._call("POST", "/v1/wanted", {"seen": seen}, _WORKER_SECONDS)
        try:
            return int(answer["sequence"]), [str(each) for each in answer["names"]]
        except (KeyError, TypeError, ValueError) as error:
            raise EngineRejected(f"plugin's wanted names cannot be read: {error!r}") from error

    async def refuse(self, served_name: str, status: int, line: str) -> None:
        """Let the requests that wait for a name fail with an HTTP status and a line."""
        body = {"served_name": served_name, "status": status, "message": line}
        await self._call("POST", "/v1/refuse", body)

    async def abort(self, lora_int_id: int) -> int:
        """End what runs on an id that is not published; return how many requests that were."""
        answer = await self._call("POST", "/v1/abort", {"lora_int_id": lora_int_id})
        return int(answer.get("aborted", 0))

    async def unload(self, lora_int_id: int) -> bool:
        """Remove an id from the engine. Return False while it is published or in flight."""
        body = {"lora_int_id": lora_int_id}
        response = await self._send("POST", "/v1/unload", body, self._load_seconds)
        if response.status_code == _CONFLICT:
            return False
        _raise_for_status(response)
        return True

    async def shutdown(self, instance: str, *, force: bool) -> None:
        """Let vLLM end as after SIGTERM. Raises EngineRejected while requests run, unless forced."""
        await self._call("POST", "/v1/shutdown", {"instance": instance, "force": force})

    async def _call(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        seconds: float = _READ_SECONDS,
    ) -> dict[str, Any]:
        response = await self._request(method, path, body, seconds)
        try:
            answer = response.json()
        except ValueError as error:
            raise EngineRejected(f"engine sent no JSON for {path}") from error
        if not isinstance(answer, dict):
            raise EngineRejected(f"engine sent no JSON object for {path}")
        return answer

    async def _request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        seconds: float = _READ_SECONDS,
    ) -> httpx.Response:
        response = await self._send(method, path, body, seconds)
        _raise_for_status(response)
        return response

    async def _send(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float
    ) -> httpx.Response:
        try:
            response = await ask(self._http, method, path, json=body, timeout=seconds)
            self._listening = True
            return response
        except httpx.ConnectError as error:
            self._listening = False
            raise EngineUnreachable(
                "no plugin answers on the control socket run/engine.sock"
            ) from error
        except httpx.TimeoutException as error:
            self._listening = True
            raise EngineUnreachable(f"engine did not answer {path} within {seconds:g} s") from error
        except httpx.TransportError as error:
            raise EngineUnreachable(f"engine went away during {path}") from error


def _previous(answer: dict[str, Any]) -> int | None:
    previous = answer.get("previous")
    return None if previous is None else int(previous)


def _raise_for_status(response: httpx.Response) -> None:
    if response.is_success:
        return
    try:
        text = str(response.json()["error"])[:2000]
    except (ValueError, KeyError, TypeError):
        text = " ".join(response.text.split())[:300]
    # An empty text is never passed on: AssertionError of vLLM has none.
    raise EngineRejected(text or f"engine refused with status {response.status_code} (no text)")
