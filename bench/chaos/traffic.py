"""Requests without pause, each to an engine that a Service would choose, and what came of them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from fleet import TOKENS, instance
from operator_chain import BASE
from real_chain import PROMPT

if TYPE_CHECKING:
    from real_chain import RealChain
    from wishes import Wishes


@dataclass(frozen=True)
class Fault:
    """One answer that must not be."""

    what: str
    adapter: str
    engine: str
    at: float
    detail: str


class Routes:
    """Which engines a request may go to: alive, and in the adapter's status as serving it.

    Looked at every 0.3 s. An engine that is about to be killed is taken out first; one that came
    back counts for an adapter once the status names its new instance.
    """

    def __init__(self, chain: RealChain) -> None:
        self._chain = chain
        self.down: set[str] = set()
        self.statuses: dict[str, dict[str, Any]] = {}
        self.instances: dict[str, str] = {}

    def look(self) -> None:
        """Read statuses and engines anew."""
        self.instances = {name: instance(self._chain, name) for name in self._chain.engines}
        items = self._chain.adapters()
        self.statuses = {each["metadata"]["name"]: each.get("status") or {} for each in items}

    def engines(self, adapter: str) -> list[str]:
        """Return the engines that serve `adapter` now."""
        entries = self.statuses.get(adapter, {}).get("engines", [])
        return sorted(
            each["podName"]
            for each in entries
            if each.get("published")
            and each["podName"] not in self.down
            and each.get("engine")
            and each["engine"].rpartition("/")[2] == self.instances.get(each["podName"])
        )


class Traffic:
    """Asks in threads until `stop`; counts what came and keeps every fault."""

    def __init__(self, chain: RealChain, wishes: Wishes, routes: Routes, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self._chain, self._wishes, self._routes = chain, wishes, routes
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(random.Random(f"{seed}/{number}"),))
            for number in range(2)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, dice: random.Random) -> None:
        with httpx.Client(timeout=60) as http:
            while not self._ended.is_set():
                names = sorted(self._wishes.now)
                adapter = dice.choice(names) if names else ""
                engines = self._routes.engines(adapter)
                if not engines:
                    self.counts["no engine serves it"] += 1
                    time.sleep(0.05)
                    continue
                self._one(http, adapter, dice.choice(engines))

    def _one(self, http: httpx.Client, adapter: str, engine: str) -> None:
        began, asked_of = time.monotonic(), self._chain.engines[engine].process
        body = {"model": f"{self._chain.namespace}/{adapter}", "prompt": PROMPT, "temperature": 0}
        body |= {"max_tokens": TOKENS, "ignore_eos": True}
        try:
            url = f"{self._chain.engines[engine].url}/v1/completions"
            response = http.post(url, json=body)
            problem = "" if response.status_code == 200 else response.text[:200]
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        ended = time.monotonic()
        if problem:
            if engine in self._routes.down or asked_of is not self._chain.engines[engine].process:
                self.counts["lost with their engine"] += 1
            elif self._wishes.untouched(adapter, began):
                self._fault("failed", adapter, engine, problem)
            else:
                wish = self._wishes.now.get(adapter)
                gone = wish is None or wish.deleted
                self.counts["failed while deleted" if gone else "failed while changed"] += 1
            return
        text = response.json()["choices"][0]["text"]
        if text in self._wishes.right(adapter, began, ended):
            self.counts["right"] += 1
        elif adapter not in self._wishes.now or self._wishes.now[adapter].contents[0][0] > began:
            self.counts["deleted meanwhile"] += 1
        else:
            known = [name for name, answer in self._wishes.answers.items() if answer == text]
            self._fault("wrong", adapter, engine, f"answer of {known or 'nobody'}")

    def _fault(self, what: str, adapter: str, engine: str, detail: str) -> None:
        self.counts[what] += 1
        self.faults.append(Fault(what, adapter, engine, time.monotonic(), detail))


def right_answers(chain: RealChain, engine: str, contents: dict[str, Any]) -> dict[str, str]:
    """Return what stock vLLM answers with each content; all must differ."""
    answers = {name: chain.stock_tokens(engine, files, TOKENS) for name, files in contents.items()}
    base = chain.tokens(engine, BASE, max_tokens=TOKENS)
    assert len({*answers.values(), base}) == len(answers) + 1, "two contents answer alike"
    return answers


def digests_of(chain: RealChain, contents: dict[str, Any]) -> dict[str, str]:
    """Return the digest of each content, as the operator states it."""
    for name, files in contents.items():
        chain.s3_adapter(name, files)
    found = {name: str(chain.wait_ready(name)["digest"]) for name in contents}
    for name in contents:
        chain.wait_gone(name)
    return found
