"""The trainers' library against a real operator, which asks a real API server who they are."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from lorafleet.errors import AccessDenied, AdapterRejected
from lorafleet.pinned_names import PinnedName, parse
from lorafleet.push import AsyncFleet, Fleet, NotServed, OperatorUnreachable, Overtaken
from processes import free_port
from psutil import Process
from push_rig import Scene, scene
from pushing import MODULE, Content, folder, safetensors

__all__ = ["scene"]
CONFIG = Content.of(1, 2).config
PLACE = {"name": "rl", "base_model": "tiny/simulated", "pool": "pool"}


def tensors(a: float, b: float) -> dict[str, Any]:
    return {
        f"{MODULE}.lora_A.default.weight": np.full((2, 16), a, ml_dtypes.bfloat16),
        f"{MODULE}.lora_B.default.weight": np.full((16, 2), b, ml_dtypes.bfloat16),
    }


async def test_what_is_pushed_is_waited_for_and_sent_once(scene: Scene, tmp_path: Path) -> None:
    with scene.client() as fleet:

        def push(what: Any, step: int, **more: Any) -> Any:
            return asyncio.to_thread(fleet.push, what, step=step, **PLACE, **more)

        first = await push(folder(tmp_path / "first", Content.of(1, 2)), 1)
        await asyncio.to_thread(first.wait, timeout=60)
        assert first.sent_bytes == 128
        assert first.served_name == f"{scene.namespace}/rl"
        assert await asyncio.to_thread(first.staleness) == {"engine-0": 0, "engine-1": 0}
        pinned = await asyncio.to_thread(first.pinned)
        assert parse(pinned) == PinnedName(first.served_name, pinned[-64:])
        assert await asyncio.to_thread(first.pinned, "engine-1") == pinned
        with pytest.raises(NotServed, match="engine-2 serves"):
            await asyncio.to_thread(first.pinned, "engine-2")

        seen: list[tuple[int, int]] = []
        second = await push(
            safetensors(Content.of(1, 3)),
            2,
            config=CONFIG,
            progress=lambda *now: seen.append(now),
        )
        assert second.sent_bytes == 64
        assert seen == [(0, 64), (64, 64)]
        await asyncio.to_thread(second.wait, 2, 60)
        assert await asyncio.to_thread(second.pinned) != pinned
        with pytest.raises(NotServed, match="no engine serves"):
            await asyncio.to_thread(first.pinned)

        third = await push(tensors(1, 2), 3, config=CONFIG)
        assert third.sent_bytes == 128
        await asyncio.to_thread(third.wait, "all", 60)
        again = await push(tensors(1, 2), 4, config=CONFIG)
        assert (again.sent_bytes, again.unchanged, again.revision) == (0, True, third.revision)
        with pytest.raises(Overtaken, match="was overtaken by"):
            await asyncio.to_thread(first.wait, timeout=60)
        with pytest.raises(NotServed, match=r"2 engines serve .* after 3 s, 3 were waited for"):
            await asyncio.to_thread(again.wait, 3, 3)


async def test_a_push_outlasts_an_operator_that_is_away(scene: Scene) -> None:
    async with AsyncFleet(
        scene.address, scene.namespace, token=scene.token_file.read_text
    ) as fleet:
        options = {"config": CONFIG, **PLACE}
        first = await fleet.push(tensors(1, 2), step=1, **options)
        assert first is not None
        await first.wait(timeout=60)
        assert (await first.pinned()).startswith(f"{first.revision.served_name}@")
        scene.stop()
        pushing = asyncio.create_task(fleet.push(tensors(1, 3), step=2, **options))
        await asyncio.sleep(0.5)
        assert not pushing.done()
        scene.start()
        second = await pushing
        assert second is not None
        assert second.revision.sent_bytes == 64
        await second.wait(timeout=60)
        assert await second.staleness() == {"engine-0": 0, "engine-1": 0}


async def test_refusals_are_one_line_and_not_tried_again(scene: Scene, tmp_path: Path) -> None:
    def push(fleet: Fleet, what: Any, **more: Any) -> Any:
        return asyncio.to_thread(fleet.push, what, **{**PLACE, "config": CONFIG, **more})

    with pytest.raises(AccessDenied, match="no token in"):
        await push(scene.client(token=tmp_path / "none"), tensors(1, 2))
    with pytest.raises(AccessDenied, match="not valid for audience"):
        await push(scene.client(token=lambda: "a.b.c"), tensors(1, 2))
    with pytest.raises(AdapterRejected, match="names no pool"):
        await push(scene.client(), tensors(1, 2), pool="")
    with pytest.raises(AdapterRejected, match="DoRA is not supported"):
        await push(
            scene.client(),
            tensors(1, 2),
            config={"peft_type": "LORA", "r": 2, "lora_alpha": 2, "use_dora": True},
        )
    nobody = Fleet(f"127.0.0.1:{free_port()}", "a", token=lambda: "t", retry_seconds=0.3)
    with pytest.raises(OperatorUnreachable, match="no operator answers at "):
        await push(nobody, tensors(1, 2))


async def test_a_hundred_pushes_send_what_changed_and_leave_memory_flat(scene: Scene) -> None:
    names = [f"{MODULE.replace('layers.0', f'layers.{n}')}.lora_A.weight" for n in range(20)]
    state = {name: np.full((2, 1 << 15), n, np.float32) for n, name in enumerate(names)}

    def train() -> tuple[list[int], list[int]]:
        sent, memory = [], []
        with scene.client() as fleet:
            for step in range(100):
                for changed in (2 * step, 2 * step + 1):  # 10 % of the tensors
                    state[names[changed % 20]] += 1000 + step
                made = fleet.push(state, config=CONFIG, step=step, **PLACE)
                sent.append(made.sent_bytes)
                memory.append(Process().memory_info().rss)
        return sent, memory

    sent, memory = await asyncio.to_thread(train)
    assert sent[0] == 20 * (256 << 10)
    assert max(sent[1:]) <= 0.15 * sent[0]
    assert max(memory[20:]) - memory[19] < 16 << 20, "what was sent meanwhile is 40 MiB"


async def test_the_command_pushes_a_folder_and_waits(scene: Scene, tmp_path: Path) -> None:
    made = str(folder(tmp_path / "made", Content.of(5, 6)))

    def push(*more: str) -> tuple[int, str, str]:
        where = ["--address", scene.address, "-n", scene.namespace]
        command = [Path(sys.executable).parent / "lorafleet", "push", "rl", made, *where, *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    options = ("--token-file", str(scene.token_file), "--step", "7", "--wait")
    status, out, err = await asyncio.to_thread(
        push, *options, "--base-model", "tiny/simulated", "--pool", "pool"
    )
    assert (status, err) == (0, "")
    key = f"{scene.namespace}/rl"
    assert out.startswith(f"{key}: sha256:")
    assert out.endswith(" served by every engine, 0.0 MiB sent\n")
    status, out, _ = await asyncio.to_thread(push, *options, "-o", "json")
    assert json.loads(out)["unchanged"] is True
    status, out, err = await asyncio.to_thread(push, "--token-file", str(tmp_path / "none"))
    assert (status, out) == (1, "")
    assert err.startswith("lorafleet: no token in ")
