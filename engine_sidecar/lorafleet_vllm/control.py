"""What the control socket does: loads beside what is served, moves names, unloads what nobody uses."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import vllm
from lorafleet import pinned_names
from lorafleet.profile import EngineProfile
from vllm.lora.request import LoRARequest

import lorafleet_vllm
from lorafleet_vllm.compat import OK
from lorafleet_vllm.first_requests import (
    DEADLINE_SECONDS,
    NOT_FOUND,
    UNAVAILABLE,
    Absent,
    FirstRequests,
)
from lorafleet_vllm.keeping import GPU, OWN_PLACE, RESIDENCIES
from lorafleet_vllm.loaded import Loaded, Reports, checked
from lorafleet_vllm.refused import Refused, reason_of
from lorafleet_vllm.running import request_ids
from lorafleet_vllm.settings import RevisionPath, Volume
from lorafleet_vllm.turns import bring_in, judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lorafleet_vllm.served_names import ServedNames

_log = logging.getLogger("vllm.lorafleet")
_GRACE_SECONDS = 0.1
_IDLE_SECONDS = 30.0  # how old the workers' memory figures may get while nothing happens


class Control:
    """The API server's side of the plugin; `models` is vLLM's OpenAIServingModels.

    Runs in the event loop that serves requests: publishing a name is one assignment in it.
    """

    def __init__(
        self, volume: Volume, models: Any, compat: str, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        self.first_requests = FirstRequests(deadline_seconds)
        self._volume = volume
        self._models = models
        self._engine = models.engine_client
        self._compat = compat
        self.instance = secrets.token_hex(8)
        self._loaded: dict[int, Loaded] = {}
        self._changing = asyncio.Lock()  # one load, pin, proof or unload at a time
        self._reports: Reports | None = None

    @property
    def _names(self) -> ServedNames:
        names: ServedNames = self._models.lora_requests
        return names

    # -- reading ------------------------------------------------------------------------------

    def handshake(self) -> dict[str, Any]:
        """Return who this engine is and whether the plugin is live; asks no worker."""
        return {
            "instance": self.instance,
            "pid": os.getpid(),
            "plugin_version": lorafleet_vllm.__version__,
            "vllm_version": vllm.__version__,
            "compat": self._compat,
            "lora_enabled": self._engine.vllm_config.lora_config is not None,
            "base_models": [path.name for path in self._models.base_model_paths],
            "api_servers": self._api_servers(),
        }

    def _api_servers(self) -> int:
        parallel = self._engine.vllm_config.parallel_config
        return int(getattr(parallel, "_api_process_count", 1))

    async def profile(self) -> dict[str, Any]:
        """Return the EngineProfile that the first worker read from its live modules."""
        self._check_live()
        profile = (await self._read_workers("lorafleet_profile"))[0]
        names = [path.name for path in self._models.base_model_paths]
        aliases = [*names[1:], *profile["base_model_aliases"]]
        profile["base_model"] = names[0]
        profile["base_model_aliases"] = [a for a in dict.fromkeys(aliases) if a != names[0]]
        profile["api_servers"] = self._api_servers()
        EngineProfile.from_json(json.dumps(profile))  # the sidecar's reader must take it
        return profile

    async def state(self) -> dict[str, Any]:
        """Return names, revisions with their requests in flight, and every worker's residency."""
        self._check_live()
        workers = await self._read_residency()
        return {
            "instance": self.instance,
            "served": {
                name: self._names.peek(name).lora_int_id
                for name in self._names
                if self._is_published(name)
            },
            "revisions": {
                str(lora_int_id): {
                    "revision": loaded.name,
                    "served_name": loaded.served_name,
                    "digest": loaded.digest,
                    "loader": loaded.loader,
                    "path": loaded.request.lora_path,
                    "in_flight": self.in_flight(lora_int_id),
                    "requests": self._names.outcome(lora_int_id).requests,
                    "errors": self._names.outcome(lora_int_id).errors,
                    "pinned": loaded.residency == GPU,
                    "residency": loaded.residency,
                    "verified": loaded.verified,
                    "closed": loaded.closed,
                    "idle_seconds": int(time.monotonic() - self._used_at(lora_int_id)),
                }
                for lora_int_id, loaded in self._loaded.items()
            },
            "workers": workers,
            "first_requests": self.first_requests.figures(),
        }

    async def _read_residency(self) -> list[dict[str, Any]]:
        """Return the workers' reports; asks only when something may have moved since the last.

        A worker that is asked spins for the next second in wait of more: asked each second, an
        idle engine would burn a core.
        """
        now = time.monotonic()
        lookups = self._names.lookups
        quiet = not any(self.in_flight(lora_int_id) for lora_int_id in self._loaded)
        known = self._reports
        if (
            quiet
            and known is not None
            and known.lookups == lookups
            and now - known.at < _IDLE_SECONDS
        ):
            return known.workers
        workers = await self._read_workers("lorafleet_stats")
        self._reports = Reports(workers, lookups, now) if quiet else None
        return workers

    def in_flight(self, lora_int_id: int) -> int:
        """Return how many requests look up, wait for or run on the revision."""
        return max(len(self._running(lora_int_id)), self._names.holders(lora_int_id))

    def _running(self, lora_int_id: int) -> list[str]:
        return request_ids(self._engine, self._loaded[lora_int_id].request.lora_name)

    def _used_at(self, lora_int_id: int) -> float:
        return max(self._loaded[lora_int_id].since, self._names.used_at(lora_int_id))

    def _is_published(self, name: str) -> bool:
        return self._names.is_ours(self._names.peek(name))

    async def _ask(self, method: str, *args: Any) -> list[Any]:
        answers: list[Any] = await self._engine.collective_rpc(method, args=args)
        return answers

    async def _read_workers(self, method: str, *args: Any) -> list[dict[str, Any]]:
        """Return what each worker answers; from then on the handshake knows if one is not live."""
        answers = [json.loads(text) for text in await self._ask(method, *args)]
        for rank, answer in enumerate(answers):
            if "inactive" in answer:
                self._compat = f"worker {rank}: {answer['inactive']}"
        self._check_live()
        return answers

    def doubt(self) -> None:
        """Count no revision as proved any more: the memory behind the slots was taken away."""
        for loaded in self._loaded.values():
            loaded.verified = False
        self._reports = None

    def _check_live(self) -> None:
        if self._compat != OK:
            raise Refused(f"the plugin is inactive: {self._compat}", 503)
        if self._engine.vllm_config.lora_config is None:
            raise Refused("the engine runs without --enable-lora", 503)

    # -- changing -----------------------------------------------------------------------------

    async def load(self, served_name: str, digest: str, loader: str) -> dict[str, Any]:
        """Load a staged revision under a new id, not served yet; the same one only once."""
        self._check_live()
        hex_digest = checked(served_name, digest, loader)
        if self._api_servers() > 1:
            raise Refused(
                f"engine runs {self._api_servers()} API servers; "
                "runtime LoRA updates reach only one"
            )
        if self._models.is_base_model(served_name):
            raise Refused(f"served name {served_name} is the base model's")
        start = time.perf_counter()
        async with self._change():
            lora_int_id = self._find(served_name, digest, loader)
            if lora_int_id is None:
                lora_int_id = await self._load(served_name, hex_digest, loader)
            self._loaded[lora_int_id].closed = False
        return {"lora_int_id": lora_int_id, "seconds": time.perf_counter() - start}

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """One change at a time; the workers are asked again after each."""
        async with self._changing:
            try:
                yield
            finally:
                self._reports = None

    def _find(self, served_name: str, digest: str, loader: str) -> int | None:
        wanted = (served_name, digest, loader)
        for lora_int_id, loaded in self._loaded.items():
            if (loaded.served_name, loaded.digest, loaded.loader) == wanted:
                return lora_int_id
        return None

    async def _load(self, served_name: str, hex_digest: str, loader: str) -> int:
        lora_int_id = int(self._models.lora_id_counter.inc(1))
        request = LoRARequest(
            lora_name=f"{pinned_names.whole(served_name, hex_digest)}/{loader}",
            lora_int_id=lora_int_id,
            lora_path=self._volume.lora_path(RevisionPath(hex_digest, loader)),
        )
        try:
            await bring_in(self._read_workers, request)
        except BaseException as error:
            # One tensor-parallel rank may have refused what the others have loaded by now.
            await asyncio.shield(self._forget(lora_int_id))
            if isinstance(error, Exception):
                raise Refused(reason_of(error), 422) from error
            raise
        loaded = Loaded(served_name, f"sha256:{hex_digest}", loader, request)
        self._loaded[lora_int_id] = loaded
        self._names.add(loaded)
        return lora_int_id

    async def _forget(self, lora_int_id: int) -> None:
        try:
            await self._engine.remove_lora(lora_int_id)
        except Exception as error:
            _log.warning("lorafleet: adapter %d was not removed: %s", lora_int_id, error)

    async def verify(self, lora_int_id: int) -> dict[str, Any]:
        """Compare what every worker's slot holds of the revision with what was staged.

        Steps run between the layers. Raises Refused with the first module that differs.
        """
        self._check_live()
        loaded = self._get(lora_int_id)
        start = time.perf_counter()
        async with self._change():
            loaded.verified = False
            hex_digest = loaded.digest.removeprefix("sha256:")
            file = self._volume.revision_directory(hex_digest) / "revision.json"
            modules, line = await judge(self._read_workers, loaded.request, file)
            if line:
                raise Refused(f"adapter {loaded.name}: {line}")
            loaded.verified = True
        return {"verified": True, "modules": modules, "seconds": time.perf_counter() - start}

    def publish(self, served_name: str, lora_int_id: int) -> dict[str, Any]:
        """Let `served_name` mean the revision from the next look-up on."""
        self._check_live()
        loaded = self._get(lora_int_id)
        if served_name != loaded.served_name:
            raise Refused(f"adapter {lora_int_id} was loaded for {loaded.served_name}")
        previous = self._names.peek(served_name)
        if previous is not None and not self._names.is_ours(previous):
            raise Refused(f"served name {served_name} is taken by an adapter that is not ours")
        self._names[served_name] = loaded.request
        loaded.closed = False
        self.first_requests.answer(served_name, None)
        return {"previous": None if previous is None else previous.lora_int_id}

    def refuse(self, served_name: str, status: int, line: str) -> dict[str, Any]:
        """Let requests that wait for `served_name` fail with an HTTP status and a line."""
        if status not in (NOT_FOUND, UNAVAILABLE):
            raise Refused(f"status must be {NOT_FOUND} or {UNAVAILABLE}", 400)
        self.first_requests.answer(served_name, Absent(status, line))
        return {}

    def unpublish(self, served_name: str) -> dict[str, Any]:
        """Let new requests for `served_name` fail, pinned ones too; those in flight go on."""
        self._check_live()
        previous = self._names.peek(served_name)
        self._names.close(served_name)
        if previous is None:
            return {"previous": None}
        if not self._is_published(served_name):
            raise Refused(f"{served_name} is not a served name of ours")
        del self._names[served_name]
        return {"previous": previous.lora_int_id}

    async def keep(self, lora_int_id: int, residency: str) -> dict[str, Any]:
        """Let the workers keep the revision as `residency` says (keeping.py)."""
        if residency not in RESIDENCIES:
            raise Refused(
                f"residency {residency!r} is not one of {', '.join(RESIDENCIES[:-1])}", 400
            )
        self._check_live()
        loaded = self._get(lora_int_id)
        async with self._change():
            try:
                if residency in OWN_PLACE:
                    await bring_in(self._read_workers, loaded.request)  # it may be evicted
                await self._ask("lorafleet_keep", lora_int_id, residency)
            except Exception as error:
                raise Refused(reason_of(error)) from error
            loaded.residency = residency
        return {}

    async def unload(self, lora_int_id: int) -> dict[str, Any]:
        """Remove a revision that no name and no request uses from the engine."""
        self._check_live()
        async with self._change():
            if lora_int_id not in self._loaded:
                return {}
            loaded = self._loaded[lora_int_id]
            self._check_unused(lora_int_id)
            # From here on nobody can look it up; the wait is for a request that was handed from
            # the task that looked it up to another one that has not reached the engine yet.
            was_closed, loaded.closed = loaded.closed, True
            looked_up = self._names.used_at(lora_int_id)
            try:
                await asyncio.sleep(looked_up + _GRACE_SECONDS - time.monotonic())
                self._check_unused(lora_int_id)
            except BaseException:
                loaded.closed = was_closed
                raise
            await self._engine.remove_lora(lora_int_id)
            del self._loaded[lora_int_id]
            self._names.forget(loaded)
        return {}

    def shutdown(self, instance: str, *, force: bool) -> dict[str, Any]:
        """Let vLLM end as after SIGTERM, with its own shutdown timeout, once this is answered."""
        if instance != self.instance:
            return {"ending": False}
        running = max(len(request_ids(self._engine)), sum(map(self.in_flight, self._loaded)))
        if running and not force:
            raise Refused(f"{running} requests are running")
        _log.warning("lorafleet: asked to end, %d requests are running", running)
        loop = asyncio.get_running_loop()
        loop.call_later(_GRACE_SECONDS, os.kill, os.getpid(), signal.SIGTERM)
        return {"ending": True}

    async def abort(self, lora_int_id: int) -> dict[str, Any]:
        """End what the engine runs on an unserved revision: clients get what there is of an answer.

        No new request gets it by its pinned name either.
        """
        self._check_live()
        if lora_int_id not in self._loaded:
            return {"aborted": 0}
        self._check_unpublished(lora_int_id)
        self._loaded[lora_int_id].closed = True
        running = self._running(lora_int_id)
        if running:
            await self._engine.abort(running, internal=True)
        return {"aborted": len(running)}

    def _check_unused(self, lora_int_id: int) -> None:
        self._check_unpublished(lora_int_id)
        in_flight = self.in_flight(lora_int_id)
        if in_flight:
            raise Refused(f"adapter {lora_int_id} has {in_flight} requests in flight")

    def _check_unpublished(self, lora_int_id: int) -> None:
        request = self._loaded[lora_int_id].request
        names = [
            name
            for name in self._names
            if self._names.peek(name) is request and self._is_published(name)
        ]
        if names:
            raise Refused(f"adapter {lora_int_id} is published as {', '.join(names)}")

    def _get(self, lora_int_id: int) -> Loaded:
        try:
            return self._loaded[lora_int_id]
        except KeyError:
            raise Refused(f"no adapter {lora_int_id} is loaded", 404) from None
