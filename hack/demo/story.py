"""The story that the demo tells, a function for each chapter.

Each chapter does something that a person would do, asks the engine as a client would, and notes
the engine's memory. What does not come out as told raises StoryBroken: the demo is a test too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from demo import figures
from demo.chat import QUESTIONS, ask
from demo.cluster import ready
from demo.model import BASE_MODEL
from demo.prepare import adapter
from demo.screen import chapter, step, table
from demo.styles import STYLES

if TYPE_CHECKING:
    from demo.figures import Figures
    from demo.fleet import Fleet

ADAPTERS = ("pirate", "json", "chef")
_MARKS = {style.name: style.marks for style in STYLES}

_LEGEND = """
  arena used   bytes of the one host copy of each revision, out of a fixed budget
  in slots     revisions that the next request can use at once (max_loras 2)
  host         revisions registered with the engine, in no slot (max_cpu_loras 2 counts both)
  arena only   revisions that the engine dropped or no longer needs; back without the source
  evictions    revisions that made room for another; rebuilds brought one back for a request"""


class StoryBroken(RuntimeError):
    """Raised when the fleet did not do what the chapter tells; one line."""


class Story:
    """Tells the chapters in order; keeps what the closing tables show."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._memory: list[tuple[str, Figures, int]] = []
        self._answers: list[tuple[str, str, str]] = []

    def tell(self) -> None:
        """All of it."""
        self.base_alone()
        self.first_two()
        self.third()
        self.ask_everyone()
        self.second_revision()
        self.deletion()
        self.summary()

    def base_alone(self) -> None:
        """The engine before any adapter."""
        chapter("The engine serves the base model alone")
        self._say(BASE_MODEL, "base model")
        self._note("base model alone")

    def first_two(self) -> None:
        """Two adapters fill the two slots."""
        chapter(
            "Two adapters: kubectl apply -f pirate.yaml -f json.yaml (charts/lorafleet/examples)"
        )
        for name in ADAPTERS[:2]:
            self._upload(name, f"{name}/v1")
            self._apply(name)
        for name in ADAPTERS[:2]:
            self._await_ready(name)
        self._fleet.cluster.show("LoRAAdapter")
        self._note("pirate and json applied")

    def third(self) -> None:
        """A third one, though slots and max_cpu_loras are two: the least used makes room."""
        chapter("A third adapter on an engine with max_cpu_loras 2: chef.yaml")
        self._upload("chef", "chef/v1")
        self._apply("chef")
        self._await_ready("chef")
        after = self._note("chef applied")
        _expect(after.evictions >= 1, f"no eviction with three adapters and two places: {after}")
        step("one of the first two was evicted from the engine; its bytes stay in the arena")
        self._fleet.cluster.show("LoRAAdapter")

    def ask_everyone(self) -> None:
        """Every adapter answers in its own manner; the evicted one is rebuilt from the arena."""
        chapter("Everyone is asked the same; what was evicted comes back without the source")
        reads = self._fleet.store.reads()
        before = self._memory[-1][1]
        for name in ADAPTERS:
            self._say(f"demo/{name}", name)
        after = self._note("all three asked")
        _expect(after.rebuilds > before.rebuilds, f"nothing was rebuilt: {after}")
        now = self._fleet.store.reads()
        _expect(now == reads, f"the source was read again: {reads} requests before, {now} after")
        rebuilt = after.rebuilds - before.rebuilds
        step(f"{rebuilt} rebuilt from the arena; requests to S3: {reads} before, {now} after")

    def second_revision(self) -> None:
        """The pirate becomes a captain: a new revision under the same name."""
        chapter("A second revision of pirate: spec.source.s3.prefix becomes pirate/v2")
        first = self._digest("pirate")
        self._upload("pirate-2", "pirate/v2")
        self._apply("pirate", prefix="pirate/v2")
        self._await_ready("pirate")
        second = self._digest("pirate")
        _expect(first != second, f"the digest is still {first}")
        step(f"revision {first[7:19]} -> {second[7:19]}, the served name moved in one step")
        self._say("demo/pirate", "pirate-2", label="pirate, second revision")
        self._note("pirate updated")

    def deletion(self) -> None:
        """An adapter goes, and with it its name."""
        chapter("Deletion: kubectl delete lora json")
        cluster = self._fleet.cluster
        cluster.delete("LoRAAdapter", "json")
        cluster.wait("LoRAAdapter", "json", lambda found: found is None, "gone")
        status, text = ask(self._fleet.engine.url, "demo/json", QUESTIONS[0])
        _expect(status == 404, f"demo/json answers {status} after its deletion: {text}")
        step(f"model demo/json: {status} {text}")
        self._answers.append(("json, deleted", f"{status} not found", f"{status} not found"))
        cluster.show("LoRAAdapter")
        self._note("json deleted")

    def summary(self) -> None:
        """What was said and what it took."""
        chapter("Who answered what (the first 60 characters)")
        table(("model", *QUESTIONS), self._answers)
        chapter("The engine's memory after each step, from its Prometheus endpoint")
        rows = [[when, *seen.row, reads] for when, seen, reads in self._memory]
        table(("after", *figures.HEADERS, "S3 reads"), rows)
        print(_LEGEND)

    def _upload(self, name: str, prefix: str) -> None:
        step(f"uploading {name} to s3://{self._fleet.store.bucket}/{prefix}")
        self._fleet.store.upload(adapter(name), prefix)

    def _apply(self, name: str, **s3: str) -> None:
        self._fleet.cluster.apply(self._fleet.manifest(name, **s3))

    def _await_ready(self, name: str) -> None:
        self._fleet.cluster.wait("LoRAAdapter", name, ready, "Ready")
        step(f"{name} is Ready")

    def _digest(self, name: str) -> str:
        found: dict[str, Any] = self._fleet.cluster.get("LoRAAdapter", name) or {}
        return str(found.get("status", {}).get("digest", ""))

    def _say(self, model: str, style: str, label: str = "") -> None:
        """Ask the questions of `model` and check that the answers are in its manner."""
        texts = []
        for question in QUESTIONS:
            status, text = ask(self._fleet.engine.url, model, question)
            _expect(status == 200, f"{model} answers {status}: {text}")
            mark = _MARKS.get(style)
            if mark is None:
                strange = [other for other in _MARKS.values() if text.startswith(other)]
                _expect(not strange, f"the base model speaks like an adapter: {text!r}")
            else:
                _expect(text.startswith(mark), f"{model} is not in its manner: {text!r}")
            step(f"{label or style}: {text}")
            texts.append(text.replace("\n", " "))
        self._answers.append((label or style, texts[0][:60], texts[1][:60]))

    def _note(self, when: str) -> Figures:
        """Keep the memory figures of now under `when`."""
        seen = figures.settled(self._fleet.sidecar.metrics_url)
        self._memory.append((when, seen, self._fleet.store.reads()))
        return seen


def _expect(held: bool, broken: str) -> None:
    if not held:
        raise StoryBroken(broken)
