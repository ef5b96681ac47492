"""Requests that decode without end in this process, step by step, and what comes between two steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from collections.abc import Callable


class Decoding:
    """`count` requests of one adapter (None: the base model) that decode while others come and go.

    Times are those of the steps that brought these requests a token.
    """

    def __init__(self, probe: Any, lora_request: Any = None, count: int = 8) -> None:
        self._engine = probe.llm.llm_engine
        self._limit = probe.llm.llm_engine.vllm_config.model_config.max_model_len - 16
        self._lora_request = lora_request
        self._ids = [f"tenant-{index}" for index in range(count)]
        self._others = 0
        self.first_tokens: dict[str, float] = {}  # of other requests: seconds from their arrival
        self._arrivals: dict[str, float] = {}
        self._open: set[str] = set()  # other requests that are not finished

    def __enter__(self) -> Decoding:
        for name in self._ids:
            self._add(name, self._limit, self._lora_request)
        self.run(32)
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.abort_request(self._ids)
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def _add(self, name: str, tokens: int, lora_request: Any) -> None:
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": [1, 2, 3, 4]}
        self._engine.add_request(name, prompt, parameters, lora_request=lora_request)

    def ask(self, lora_request: Any, tokens: int = 2) -> str:
        """Let another request arrive; its time to the first token will be in `first_tokens`."""
        self._others += 1
        name = f"other-{self._others}"
        self._arrivals[name] = time.perf_counter()
        self._open.add(name)
        self._add(name, tokens, lora_request)
        return name

    def run(self, steps: int, act: Callable[[int], None] | None = None) -> list[float]:
        """Return the seconds between consecutive tokens over `steps` tokens.

        `act` is called once after each, with their number so far; its own time counts, as that
        of a call to the engine process does, which also comes between two steps.
        """
        found: list[float] = []
        last = None
        while len(found) < steps:
            outputs = self._engine.step()
            now = time.perf_counter()
            if not self._take(outputs, now):
                continue
            if last is not None:
                found.append(now - last)
            last = now
            if act is not None:
                act(len(found))
        return found

    def settle(self) -> None:
        """Step until no other request is left: unloading an adapter under one would reload it."""
        while self._open:
            self._take(self._engine.step(), time.perf_counter())

    def _take(self, outputs: list[Any], now: float) -> bool:
        """Note first tokens of others; returns whether ours got one."""
        got = False
        for output in outputs:
            if output.finished:
                self._open.discard(output.request_id)
            if not output.outputs or not output.outputs[0].token_ids:
                continue
            name = output.request_id
            got = got or name in self._ids
            if name in self._arrivals:
                self.first_tokens[name] = now - self._arrivals.pop(name)
        return got
