"""`kubectl lora` beside the real operator with simulated engines: ways back, watches, terminals."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from typing import TYPE_CHECKING, Any

from kubectl_lora import KubectlLora
from localstack import LocalStack
from lorafleet_operator.kubectl.text import width
from simulated_fleet import SimulatedFleet

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from kubectl_lora import Ran
    from localcluster import LocalCluster

SECONDS = 120
COLOUR = re.compile(r"\x1b\[\d+m")
CONTROL = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]")
ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"


async def test_adapters_are_watched_rolled_back_and_shown_live(
    cluster: LocalCluster, namespace: str, tmp_path: Path
) -> None:
    lora = KubectlLora(tmp_path, cluster.kubeconfig)
    fleet = SimulatedFleet(cluster.kubeconfig, tmp_path, namespace, engines=2, replicas=2)
    here = ("-n", namespace)
    with LocalStack(tmp_path) as stack:
        async with fleet:
            await fleet.apply("chat")
            settings = {"LORAFLEET_NAMESPACES": namespace, "LORAFLEET_VOLUME_ROOT": str(fleet.root)}
            stack.start_operator(cluster.kubeconfig, **settings)
            await fleet.settled(SECONDS)
            watch = lora.started("ls", "-w", "-o", "json", *here)
            first = fleet.adapters["chat"].digest
            await fleet.apply("chat", 2)
            await fleet.settled(SECONDS)
            second = fleet.adapters["chat"].digest

            def served() -> list[str]:
                return [each.serves(f"{namespace}/chat") for each in fleet.engines.values()]

            told = json.loads((await ran(lora, "history", "chat", "-o", "json", *here)).out)
            states = [(each["digest"], each["state"], each["staged"]) for each in told["revisions"]]
            assert states == [(second, "current", True), (first, "earlier", True)]

            stagings = fleet.books.stagings
            back = await ran(lora, "rollback", "chat", *here)
            assert (back.status, back.err) == (0, "")
            assert back.out.splitlines()[-1] == (
                f"{namespace}/chat serves revision {first.removeprefix('sha256:')[:12]}"
            )
            assert served() == [first, first]
            assert fleet.books.stagings == stagings, "nothing was sent"
            kept = await ran(lora, "ls", *here)
            assert f"{first.removeprefix('sha256:')[:12]}*" in kept.out

            forth = await on_terminal(lora, "rollback", "chat", "--to", "source", *here)
            assert forth.status == 0, forth.out
            assert served() == [second, second]
            assert re.search(r"\r\[#*-*\] \d/2 ", forth.out), "a bar that is drawn over"
            lines = CONTROL.sub("", forth.out.replace("\r\n", "\n")).splitlines()
            assert lines[-1].endswith(f"{namespace}/chat serves what its source holds")

            await the_live_table_is_drawn_until_it_is_interrupted(lora, here)

            await fleet.delete("chat")
            changes = await asyncio.to_thread(lines_until_deleted, watch)
            kinds = [json.loads(line)["type"] for line in changes]
            assert (kinds[0], kinds[-1]) == ("ADDED", "DELETED")
            assert "MODIFIED" in kinds
            pins = [json.loads(line)["adapter"]["pinnedRevision"] for line in changes]
            assert first in pins


async def the_live_table_is_drawn_until_it_is_interrupted(
    lora: KubectlLora, here: tuple[str, ...]
) -> None:
    def drawn_twice(text: str) -> bool:
        return text.count("2 engines, 1 of 1 adapters ready") >= 2

    live = ("top", "--interval", "0.2", "--no-live", *here)
    shown = await on_terminal(lora, *live, until=drawn_twice)
    assert shown.status == 130
    assert shown.out.startswith(ALTERNATE)
    assert shown.out.rstrip("^C\r\n").endswith(BACK), "the terminal is given back"
    assert COLOUR.search(shown.out)
    ended = await on_terminal(lora, *live, until=drawn_twice, end_with=signal.SIGTERM)
    assert (ended.status, ended.out.endswith(BACK)) == (143, True)
    plain = await on_terminal(lora, *live, until=drawn_twice, NO_COLOR="1")
    assert not COLOUR.search(plain.out)
    assert CONTROL.search(plain.out)
    dumb = await on_terminal(lora, *live, TERM="dumb")
    assert (dumb.status, CONTROL.search(dumb.out)) == (0, None)
    narrow = await on_terminal(lora, *live, until=lambda text: "engine-1" in text, columns=30)
    frame = CONTROL.sub("", narrow.out).replace("\r", "").splitlines()
    assert "engine-1" in "".join(frame)
    assert all(width(line) <= 30 for line in frame), frame


async def ran(lora: KubectlLora, *arguments: str) -> Ran:
    return await asyncio.to_thread(lora.run, *arguments)


async def on_terminal(lora: KubectlLora, *arguments: str, **options: Any) -> Ran:
    return await asyncio.to_thread(lambda: lora.on_terminal(*arguments, **options))


def lines_until_deleted(watch: subprocess.Popen[str]) -> list[str]:
    """Return what a watch printed until an adapter was deleted, and end it."""
    found: list[str] = []
    assert watch.stdout is not None
    with watch:
        for line in watch.stdout:
            found.append(line)
            if json.loads(line)["type"] == "DELETED":
                break
        watch.send_signal(signal.SIGINT)
    return found
