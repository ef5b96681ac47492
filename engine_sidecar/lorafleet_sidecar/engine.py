"""One look at the engine: plugin live, stock, starting or refused, and what it holds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lorafleet.errors import EngineError, EngineRejected, EngineUnreachable
from lorafleet.profile import EngineProfile

from lorafleet_sidecar.control_socket import ControlSocket
from lorafleet_sidecar.observed import (
    EngineRevision,
    EngineState,
    Handshake,
    Health,
    ObservedEngine,
    split_revision_path,
)
from lorafleet_sidecar.openai_api import NO_LORA, NO_RUNTIME_UPDATES, OpenAiApi

if TYPE_CHECKING:
    from lorafleet_sidecar.openai_api import EngineMetrics, ModelCard
    from lorafleet_sidecar.settings import SidecarSettings

# A healthy engine without a control socket counts as stock only after this many seconds: the
# plugin's socket may come up a moment after /health does.
STOCK_GRACE_SECONDS = 3.0
NO_PLUGIN = "the lorafleet plugin is not loaded in the engine (nothing listens on run/engine.sock)"


class EngineClient:
    """Both ways to speak to one vLLM, and the judgement which of them holds now."""

    def __init__(
        self, settings: SidecarSettings, *, stock_grace_seconds: float = STOCK_GRACE_SECONDS
    ) -> None:
        self.control = ControlSocket(settings.volume, settings.load_timeout_seconds)
        self.api = OpenAiApi(settings)
        self._volume = settings.volume
        self._grace = stock_grace_seconds
        self._without_plugin_since: float | None = None
        self._profiles: dict[str, EngineProfile] = {}  # of the newest instance only
        self._reachable: set[str] = set()  # instances whose API accepted our key
        self._stock = _StockIdentity()

    async def close(self) -> None:
        """Close all connections."""
        await self.control.close()
        await self.api.close()

    async def observe(self) -> ObservedEngine:
        """Look at the engine. Never raises for a failing engine: that is what it reports."""
        try:
            handshake = await self.control.handshake()
        except EngineUnreachable as error:
            handshake = None
            if self.control.listening():
                return ObservedEngine(Health.STARTING, str(error))
        except EngineError as error:
            return ObservedEngine(Health.REFUSED, f"plugin's handshake failed: {error}")
        if not await self.api.healthy():
            self._without_plugin_since = None
            self._stock.went_down()
            return ObservedEngine(Health.STARTING, "engine does not answer /health yet")
        try:
            if handshake is None:
                return await self._observe_without_plugin()
            self._without_plugin_since = None
            if refusal := _refusal(handshake):
                return ObservedEngine(
                    Health.REFUSED,
                    refusal,
                    instance=handshake.instance,
                    base_models=handshake.base_models,
                )
            if handshake.compat != "ok":
                return await self._observe_stock(handshake.compat, handshake.instance)
            return await self._observe_live(handshake)
        except EngineUnreachable as error:
            return ObservedEngine(Health.STARTING, str(error))
        except EngineRejected as error:
            return ObservedEngine(
                Health.REFUSED, str(error), instance=handshake.instance if handshake else ""
            )

    async def _observe_live(self, handshake: Handshake) -> ObservedEngine:
        instance = handshake.instance
        if instance not in self._reachable:
            await self.api.models()  # raises for a missing API key
            self._reachable = {instance}
        if instance not in self._profiles:
            self._profiles = {instance: await self.control.profile()}
        state = await self.control.state()
        if state.instance != instance:
            return ObservedEngine(Health.STARTING, "engine restarted a moment ago")
        return ObservedEngine(
            Health.READY,
            instance=instance,
            base_models=handshake.base_models,
            profile=self._profiles[instance],
            state=state,
        )

    async def _observe_without_plugin(self) -> ObservedEngine:
        now = time.monotonic()
        if self._without_plugin_since is None:
            self._without_plugin_since = now
        if now - self._without_plugin_since < self._grace:
            return ObservedEngine(Health.STARTING, "engine is up, waiting for its plugin")
        return await self._observe_stock(NO_PLUGIN, "")

    async def _observe_stock(self, why: str, instance: str) -> ObservedEngine:
        cards = await self.api.models()
        metrics = await self.api.metrics()
        bases = tuple(card.name for card in cards if not card.parent)
        instance = instance or self._stock.instance(metrics.started)
        refusal = ""
        if not await self.api.runtime_updates():
            refusal = NO_RUNTIME_UPDATES
        elif not metrics.lora_enabled:
            refusal = NO_LORA
        if refusal:
            return ObservedEngine(Health.REFUSED, refusal, why, instance, bases)
        roots = tuple(card.root for card in cards if not card.parent and card.root)
        profile = EngineProfile(
            base_model=bases[0] if bases else "",
            base_model_aliases=tuple(dict.fromkeys((*bases[1:], *roots))),
            max_loras=metrics.max_loras,
        )
        state = self._stock_state(instance, cards, metrics)
        message = "the plugin is not live: adapters go through vLLM's own load"
        return ObservedEngine(Health.STOCK, message, why, instance, bases, profile, state)

    def _stock_state(
        self, instance: str, cards: list[ModelCard], metrics: EngineMetrics
    ) -> EngineState:
        served, revisions = {}, {}
        for card in cards:
            if not card.parent:
                continue
            number = self._stock.number(card.name, card.root)
            digest, loader = split_revision_path(card.root, self._volume, "plain")
            busy = int(card.name in metrics.busy)
            served[card.name] = number
            revisions[number] = EngineRevision(number, card.name, digest, loader, busy)
        return EngineState(instance, served, revisions)


class _StockIdentity:
    """Stands in for what only the plugin knows: the engine's instance and its LoRA ids."""

    def __init__(self) -> None:
        self._starts = 1
        self._numbers: dict[tuple[str, str], int] = {}

    def went_down(self) -> None:
        """Without a start time every interruption counts as a new process: at worst one more load."""
        self._starts += 1

    def instance(self, started: float) -> str:
        return f"stock-{started:.2f}" if started else f"stock-{self._starts}"

    def number(self, name: str, root: str) -> int:
        return self._numbers.setdefault((name, root), len(self._numbers) + 1)


def _refusal(handshake: Handshake) -> str:
    """Return why this engine can take no adapter at all, or ""."""
    if not handshake.lora_enabled:
        return NO_LORA
    if handshake.api_servers > 1:
        return (
            f"engine runs {handshake.api_servers} API servers; runtime LoRA updates reach only one"
        )
    return ""
