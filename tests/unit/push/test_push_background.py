"""Pushing beside the training: the step pays for the copy, and the latest wins."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lorafleet.errors import AccessDenied
from lorafleet.push import Overtaken, Revision
from lorafleet.push.background import Background
from lorafleet.push.content import Content, from_tensors
from lorafleet.v1alpha1 import push_pb2 as pb

NAME = "m.q_proj.lora_A.weight"


class Slow:
    """Sends when it is let; notes the first element of what it sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, float]] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def __call__(self, content: Content, manifest: Any, _progress: Any) -> Revision:
        self.began.release()
        self.go.acquire()
        if manifest.step == 666:
            raise AccessDenied("no")
        data = b"".join(bytes(piece) for each in content.tensors for piece in each.pieces())
        self.sent.append((manifest.step, float(np.frombuffer(data, np.float32)[0])))
        return Revision("ns", manifest.name, "sha256:", manifest.step, 1, 0, False, "ns/a", None)  # type: ignore[arg-type]


def put(background: Background, array: Any, step: int, name: str = "a") -> Any:
    content = from_tensors({NAME: array}, {}, adapter="default")
    manifest = pb.PushManifest(name=name, step=step)
    return background.put(content, manifest, lambda *_: None)


def flags_at(address: int) -> list[str]:
    """Return the kernel's flags of the mapping at an address of this process."""
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(found[1], 16) <= address < int(found[2], 16)
        elif here and line.startswith("VmFlags:"):
            return line.split()[1:]
    return []


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has none"
)
def test_the_copy_is_made_in_large_pages_as_a_fault_for_each_small_one_costs_the_step_more() -> (
    None
):
    addresses: list[int] = []

    def send(content: Content, manifest: Any, _progress: Any) -> Revision:
        (piece,) = content.tensors[0].pieces()
        addresses.append(np.frombuffer(piece, np.uint8).__array_interface__["data"][0])
        return Revision("ns", manifest.name, "sha256:", manifest.step, 1, 0, False, "ns/a", None)  # type: ignore[arg-type]

    background = Background(send)
    put(background, np.zeros((2, 1 << 18), np.float32), 1).revision(60)
    (address,) = addresses
    assert "hg" in flags_at(address)
    background.close()


def test_the_latest_wins_and_each_is_what_the_model_was_then() -> None:
    slow = Slow()
    background = Background(slow)
    array = np.zeros((2, 1000), np.float32)
    pending = []
    for step in range(5):
        array[:] = step
        pending.append(put(background, array, step))
        if step == 0:
            slow.began.acquire()
    array[:] = 99
    for step in (1, 2, 3):
        with pytest.raises(Overtaken, match=f"step {step} of a was overtaken by step {step + 1}"):
            pending[step].revision(0)
    assert not pending[0].done
    slow.go.release(2)
    assert [pending[step].revision(60).step for step in (0, 4)] == [0, 4]
    assert slow.sent == [(0, 0.0), (4, 4.0)]
    background.close()


def test_adapters_do_not_overtake_one_another_and_closing_sends_what_waits() -> None:
    slow = Slow()
    background = Background(slow)
    array = np.ones((2, 10), np.float32)
    pending = [put(background, array, step, f"a{step}") for step in range(3)]
    slow.go.release(3)
    background.close()
    assert [each.revision(0).step for each in pending] == [0, 1, 2]


def test_failures_are_told_and_the_next_is_sent() -> None:
    slow = Slow()
    background = Background(slow)
    array = np.ones((2, 10), np.float32)
    failing = put(background, array, 666)
    slow.began.acquire()
    slow.go.release(2)
    with pytest.raises(AccessDenied):
        failing.revision(60)
    assert put(background, array, 2).revision(60).step == 2
    background.close()


def test_who_hears_of_an_outcome_finds_the_memory_free() -> None:
    memories: list[Any] = []

    def send(content: Content, manifest: Any, _progress: Any) -> Revision:
        memories.extend(piece.obj for each in content.tensors for piece in each.pieces())
        return Revision("ns", manifest.name, "sha256:", manifest.step, 1, 0, False, "ns/a", None)  # type: ignore[arg-type]

    background = Background(send)
    array = np.ones((2, 10), np.float32)
    again: Future[Any] = Future()
    first = put(background, array, 1)
    first._future.add_done_callback(lambda _: again.set_result(put(background, array, 2)))
    assert again.result(60).revision(60).step == 2
    background.close()
    assert memories[0] is memories[1]


def test_a_training_that_fails_drops_what_waits() -> None:
    slow = Slow()
    background = Background(slow)
    array = np.ones((2, 10), np.float32)
    first = put(background, array, 1)
    slow.began.acquire()
    second = put(background, array, 2)
    slow.go.release()
    background.close(drop=True)
    assert first.revision(0).step == 1
    with pytest.raises(Overtaken, match="dropped: the training ended"):
        second.revision(0)


def test_what_would_end_the_thread_reaches_who_waits_and_the_next_is_sent() -> None:
    def send(_content: Content, manifest: Any, _progress: Any) -> Revision:
        raise SystemExit(str(manifest.step))

    background = Background(send)
    for step in (1, 2):
        with pytest.raises(SystemExit, match=str(step)):
            put(background, np.ones((2, 10), np.float32), step).revision(60)
    background.close()
    with pytest.raises(ValueError, match="this Fleet is closed"):
        put(background, np.ones((2, 10), np.float32), 3)


def test_two_threads_that_put_at_once_lose_no_handle() -> None:
    slow = Slow()
    background = Background(slow)
    put(background, np.ones((2, 10), np.float32), 0)
    slow.began.acquire()
    both, copied = threading.Barrier(2, timeout=60), threading.Barrier(2, timeout=60)
    handles: list[Any] = []

    class Meeting:
        """A tensor whose copying waits for that of the other thread."""

        dtype, shape, same, bounce = "F32", (1,), None, None

        def pieces(self) -> Any:
            both.wait()
            yield memoryview(b"\0\0\x80?")
            copied.wait()

    def one(step: int) -> None:
        content = Content(b"", b"", [Meeting()])
        manifest = pb.PushManifest(name="a", step=step)
        handles.append(background.put(content, manifest, lambda *_: None))

    threads = [threading.Thread(target=one, args=(step,)) for step in (1, 2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    slow.go.release(3)
    background.close()
    assert all(each.done for each in handles)
    assert sum(each._future.exception() is None for each in handles) == 1


FORK = """
import os, sys
import numpy as np
from lorafleet.errors import LorafleetError
from lorafleet.push import Fleet

fleet = Fleet("127.0.0.1:1", "ns", token=lambda: "t", retry_seconds=0)
tensors = {"m.q_proj.lora_A.weight": np.ones((2, 4), np.float32)}

def tried(push):
    try:
        return push(tensors, config={}, name="a")
    except LorafleetError as error:
        return error

failed = tried(fleet.push)
later = fleet.push_later(tensors, config={}, name="a")
child = os.fork()
if not child:
    print(*map(tried, (fleet.push, fleet.push_later)), sep="\\n", flush=True)
    fleet.close()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), type(failed).__name__, flush=True)
print(type(later._future.exception(60)).__name__)
fleet.close()
"""


def test_a_process_that_was_forked_is_told_to_make_a_fleet_of_its_own() -> None:
    """Workers of a DataLoader have all of the trainer's objects, and neither its threads nor its
    connections: without the line they would wait for ever."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=True
    )
    line = "this Fleet is in use in the process that was forked: make one here"
    assert done.stdout.splitlines() == [
        line,
        line,
        "0 OperatorUnreachable",
        "OperatorUnreachable",
    ]
