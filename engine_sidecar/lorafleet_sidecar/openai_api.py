"""Client of vLLM's own HTTP API: health, models, probe, and the stock load path."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from lorafleet.errors import EngineRejected, EngineUnreachable
from prometheus_client.parser import text_string_to_metric_families

from lorafleet_sidecar.engine_answers import ask

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_sidecar.desired import Probe
    from lorafleet_sidecar.settings import SidecarSettings

UNAUTHORIZED = (
    "engine answered 401: set the engine's API key for the sidecar (LORAFLEET_ENGINE_API_KEY_FILE)"
)
NO_RUNTIME_UPDATES = (
    "engine has no /v1/load_lora_adapter (VLLM_ALLOW_RUNTIME_LORA_UPDATING is not set)"
)
NO_LORA = "engine runs without --enable-lora"
_READ_SECONDS = 5.0
# By this the plugin leaves our own requests out of what it counts.
_OURS = {"X-Lorafleet-Probe": "1"}


@dataclass(frozen=True)
class ModelCard:
    """One line of /v1/models; `parent` is empty for a base model."""

    name: str
    root: str
    parent: str


@dataclass(frozen=True)
class EngineMetrics:
    """What /metrics of a stock engine tells about LoRA."""

    lora_enabled: bool = True  # false only when it is certain
    max_loras: int = 0  # 0: not known (vLLM says it after its first LoRA request)
    busy: frozenset[str] = frozenset()  # adapter names with waiting or running requests
    started: float = 0.0  # start of the process, seconds since the epoch; 0: not known


class OpenAiApi:
    """Speaks HTTP to vLLM on localhost.

    Every method raises EngineUnreachable when nobody answers in time and EngineRejected with
    one clear line when the engine refuses.
    """

    def __init__(self, settings: SidecarSettings) -> None:
        self._key_file = settings.engine_api_key_file
        self._key: str | None = None
        self._load_seconds = settings.load_timeout_seconds
        self._probe_seconds = settings.probe_timeout_seconds
        self._url = settings.engine_url
        # Within the pod nobody else can answer, and vLLM's certificate names the Service.
        loopback = settings.engine_url.startswith("https://127.0.0.1")
        self._http = httpx.AsyncClient(
            base_url=settings.engine_url,
            timeout=_READ_SECONDS,
            trust_env=False,
            verify=not loopback,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def healthy(self) -> bool:
        """Whether /health answers 200."""
        try:
            return (await ask(self._http, "GET", "/health")).is_success
        except (httpx.HTTPError, EngineRejected):
            return False

    async def models(self) -> list[ModelCard]:
        """Return the base models and adapters that clients can name."""
        answer = _json(_checked(await self._send("GET", "/v1/models")))
        cards = answer.get("data", [])
        return [
            ModelCard(str(c["id"]), str(c.get("root") or ""), str(c.get("parent") or ""))
            for c in cards
        ]

    async def probe(self, model: str) -> None:
        """Let `model` generate one token. The prompt is a token id: no tokenizer is needed."""
        await self._complete(model, [1], 1)

    async def ask(self, model: str, probe: Probe) -> None:
        """Let `model` answer the probe. Raises EngineRejected for an answer that was not expected."""
        text = await self._complete(model, probe.prompt, probe.max_tokens)
        if probe.expect not in text:
            raise EngineRejected(
                f"the probe {probe.prompt[:80]!r} was answered with {text[:200]!r}, which does not "
                f"hold {probe.expect[:80]!r}"
            )

    async def _complete(self, model: str, prompt: object, max_tokens: int) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0.0}
        response = await self._send("POST", "/v1/completions", body, self._probe_seconds)
        answer = _json(_checked(response))
        if not answer.get("choices"):
            raise EngineRejected(f"engine answered the probe of {model} without a choice")
        return str(answer["choices"][0].get("text") or "")

    async def prove(self, name: str) -> None:
        """Check that clients can use `name`: it is in /v1/models and answers one token."""
        if all(card.name != name for card in await self.models()):
            raise EngineRejected(f"engine does not list {name} in /v1/models after it was loaded")
        await self.probe(name)

    async def runtime_updates(self) -> bool:
        """Whether the engine has /v1/load_lora_adapter (a GET of it is 405, not 404)."""
        response = await self._send("GET", "/v1/load_lora_adapter")
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise EngineRejected(UNAUTHORIZED)
        return response.status_code != httpx.codes.NOT_FOUND

    async def load(self, name: str, path: Path) -> None:
        """Load a plain adapter directory under a name that is not served."""
        body = {"lora_name": name, "lora_path": str(path)}
        response = await self._send("POST", "/v1/load_lora_adapter", body, self._load_seconds)
        _checked_stock(response)

    async def unload(self, name: str) -> None:
        """Take a name out of the served ones; no error when it is not there."""
        response = await self._send("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        if response.status_code == httpx.codes.NOT_FOUND and "lora" in response.text.lower():
            return
        _checked_stock(response)

    async def metrics(self) -> EngineMetrics:
        """Return what /metrics says; all unknown when the engine has none."""
        response = await self._send("GET", "/metrics")
        return parse_metrics(response.text) if response.is_success else EngineMetrics()

    async def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        seconds: float = _READ_SECONDS,
    ) -> httpx.Response:
        if self._key is None:
            self._key = await self._read_key()
        response = await self._once(method, path, body, seconds)
        if response.status_code == httpx.codes.UNAUTHORIZED:
            key = await self._read_key()
            if key != self._key:
                self._key = key
                response = await self._once(method, path, body, seconds)
        return response

    async def _once(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float
    ) -> httpx.Response:
        headers = dict(_OURS)
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            return await ask(self._http, method, path, json=body, headers=headers, timeout=seconds)
        except httpx.TimeoutException as error:
            message = f"engine did not answer {path} within {seconds:g} s"
            raise EngineUnreachable(message) from error
        except httpx.ConnectError as error:
            raise EngineUnreachable(f"engine does not answer at {self._url}") from error
        except httpx.TransportError as error:
            raise EngineUnreachable(f"engine went away during {path}") from error

    async def _read_key(self) -> str:
        if self._key_file is None:
            return ""
        try:
            return (await asyncio.to_thread(self._key_file.read_text)).strip()
        except OSError as error:
            raise EngineRejected(
                f"engine's API key cannot be read: {self._key_file}: {error.strerror}"
            ) from error


def parse_metrics(text: str) -> EngineMetrics:
    """Return the LoRA facts of a Prometheus text."""
    max_loras, busy, started = 0, set[str](), 0.0
    names = set[str]()
    for family in text_string_to_metric_families(text):
        names.add(family.name)
        if family.name == "vllm:lora_requests_info":
            for sample in family.samples:
                max_loras = int(sample.labels.get("max_lora") or 0)
            # Each combination of names is a series of its own; the newest has the largest value.
            latest = max(family.samples, key=lambda sample: sample.value, default=None)
            if latest is not None:
                for label in ("running_lora_adapters", "waiting_lora_adapters"):
                    busy.update(n for n in latest.labels.get(label, "").split(",") if n)
        elif family.name == "process_start_time_seconds":
            started = max((sample.value for sample in family.samples), default=0.0)
    certain = "vllm:num_requests_running" in names and started > 0
    enabled = "vllm:lora_requests_info" in names or not certain
    return EngineMetrics(enabled, max_loras, frozenset(busy), started)


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError as error:
        raise EngineRejected(f"engine sent no JSON for {response.url.path}") from error
    if not isinstance(answer, dict):
        raise EngineRejected(f"engine sent no JSON object for {response.url.path}")
    return answer


def _checked(response: httpx.Response) -> httpx.Response:
    if response.status_code == httpx.codes.UNAUTHORIZED:
        raise EngineRejected(UNAUTHORIZED)
    if not response.is_success:
        raise EngineRejected(_text_of(response))
    return response


def _checked_stock(response: httpx.Response) -> None:
    if response.status_code in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
        try:
            detail = response.json().get("detail")
        except (ValueError, AttributeError):
            detail = "Not Found"
        if detail:  # the framework's own 404, not vLLM's answer about an adapter
            raise EngineRejected(NO_RUNTIME_UPDATES)
    if not response.is_success and "LoRA is not enabled" in response.text:
        raise EngineRejected(NO_LORA)
    _checked(response)


def _text_of(response: httpx.Response) -> str:
    """Return vLLM's own words in one line; never an empty text."""
    try:
        error = response.json()["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        text = response.text
    text = " ".join(text.split())[:500]
    return text or f"engine refused {response.url.path} with {response.status_code} (no text)"
