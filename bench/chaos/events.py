"""What happens to the fleet, one thing after another, drawn by a seed."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from real_chain import RealChain
    from traffic import Routes
    from wishes import Wishes

TENANTS = ("bank", "court")
MOST = 3
"""Adapters of one tenant at a time."""


class Chaos:
    """Draws and does events. Engines go one at a time, so that others can answer."""

    def __init__(
        self,
        chain: RealChain,
        wishes: Wishes,
        routes: Routes,
        digests: dict[str, str],
        dice: random.Random,
    ) -> None:
        self._digests = digests
        self._chain, self._wishes, self._routes, self._dice = chain, wishes, routes, dice
        self._later: list[threading.Thread] = []
        self._busy: set[str] = set()
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)

    def step(self) -> None:
        """Do one event: of those drawn, the first that there is something for."""
        kinds: dict[Callable[[], bool], int] = {
            self.apply: 4, self.update: 4, self.roll_back: 3, self.delete: 2,
            self.kill_sidecar: 2, self.freeze_sidecar: 2, self.kill_operator: 2, self.kill_engine: 1,
        }  # fmt: skip
        while not self._dice.choices(list(kinds), list(kinds.values()))[0]():
            pass

    def settle(self, seconds: float) -> None:
        """Wait until whatever is under way has come back."""
        for thread in self._later:
            thread.join(seconds)

    def apply(self) -> bool:
        tenant = self._dice.choice(TENANTS)
        taken = {name for name in self._wishes.now if name.startswith(tenant)}
        free = [name for n in range(MOST) if (name := f"{tenant}-{n}") not in taken]
        if free:
            name = self._dice.choice(free)
            content = self._content(name)
            self.say(f"apply {name} with {content}")
            self._wishes.want(name, content)
            self._chain.s3_adapter(name, self._chain.files / content)
            self._write(name, {})
        return bool(free)

    def update(self) -> bool:
        if name := self._any():
            self._give(name, self._content(name), "update")
        return bool(name)

    def roll_back(self) -> bool:
        names = [n for n in self._names() if len(self._wishes.now[n].contents) > 1]
        if names:
            name = self._dice.choice(names)
            content = self._wishes.now[name].contents[-2][1]
            if self._digests[content] in self._routes.statuses.get(name, {}).get("history", []):
                self.say(f"roll back {name} to {content} by spec.revision")
                self._wishes.want(name, content)
                self._write(name, {"revision": self._digests[content]})
            else:
                self._give(name, content, "roll back")
        return bool(names)

    def delete(self) -> bool:
        if name := self._any():
            self.say(f"delete {name}")
            self._wishes.unwant(name)
            self._chain.delete("loraadapters", name)
        return bool(name)

    def kill_engine(self) -> bool:
        if self._routes.down:
            return False
        name = self._dice.choice(sorted(self._chain.engines))
        self.say(f"kill {name}")
        self._routes.down.add(name)
        self._chain.engines[name].process.kill()

        def back() -> None:
            self._chain.restart_vllm(name, int(name.rpartition("-")[2]))
            self._routes.look()
            self._routes.down.discard(name)
            self.say(f"{name} serves again")

        self._after(0, back)
        return True

    def kill_sidecar(self) -> bool:
        if name := self._sidecar():
            self.say(f"kill the sidecar of {name}")
            self._chain.sidecars[name].process.kill()

            def back() -> None:
                self._chain.start_sidecar(name)
                self._busy.discard(name)

            self._after(self._dice.uniform(0, 2), back)
        return bool(name)

    def freeze_sidecar(self) -> bool:
        if name := self._sidecar():
            seconds = self._dice.uniform(2, 8)
            self.say(f"cut the sidecar of {name} off for {seconds:.1f} s")
            process = self._chain.sidecars[name].process
            process.signal(signal.SIGSTOP)

            def back() -> None:
                process.signal(signal.SIGCONT)
                self._busy.discard(name)

            self._after(seconds, back)
        return bool(name)

    def kill_operator(self) -> bool:
        assert self._chain.operator is not None
        if "operator" in self._busy:
            return False
        self._busy.add("operator")
        self.say("kill the operator")
        self._chain.operator.process.kill()

        def back() -> None:
            self._chain.start_operator()
            self._busy.discard("operator")

        self._after(self._dice.uniform(0, 3), back)
        return True

    def _names(self) -> list[str]:
        return sorted(name for name, wish in self._wishes.now.items() if not wish.deleted)

    def _any(self) -> str:
        names = self._names()
        return self._dice.choice(names) if names else ""

    def _sidecar(self) -> str:
        name = self._dice.choice(sorted(self._chain.sidecars))
        if name in self._busy:
            return ""
        self._busy.add(name)
        return name

    def _content(self, name: str) -> str:
        """Return a content of the adapter's tenant other than its present one."""
        tenant = name.partition("-")[0]
        wish = self._wishes.now.get(name)
        now = wish.contents[-1][1] if wish else ""
        mine = sorted(c for c in self._wishes.answers if c.startswith(tenant) and c != now)
        return self._dice.choice(mine)

    def _give(self, name: str, content: str, what: str) -> None:
        self.say(f"{what} {name} to {content}")
        self._wishes.want(name, content)
        self._chain.s3.upload(self._chain.files / content, name)
        self._write(name, {"revision": None})

    def _write(self, name: str, spec: dict[str, Any]) -> None:
        """Patch the manifest so that its generation tells the newest wish from those before."""
        poll = 1 + len(self._wishes.now[name].contents) % 2
        generation = self._chain.patch(name, spec | {"source": {"pollIntervalSeconds": poll}})
        self._wishes.written(name, generation)

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        def run() -> None:
            time.sleep(seconds)
            work()

        thread = threading.Thread(target=run)
        thread.start()
        self._later.append(thread)
