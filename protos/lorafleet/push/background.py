"""Pushing beside the training: a step pays for a copy out of the model, and the latest copy wins."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from lorafleet.errors import LorafleetError
from lorafleet.push.failures import OtherProcess, Overtaken
from lorafleet.push.tensors import FileTensor, read, size_of
from lorafleet.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from lorafleet.push.content import Content
    from lorafleet.push.revision import Engines, Revision
    from lorafleet.v1alpha1 import push_pb2 as pb

_LOG: Final = logging.getLogger(__name__)
Send = Callable[["Content", "pb.PushManifest", Callable[[int, int], None]], "Revision"]


class Pending:
    """A revision that is pushed beside the training."""

    def __init__(self) -> None:
        self._future: Future[Revision] = Future()

    @property
    def done(self) -> bool:
        """Whether it is pushed, or failed."""
        return self._future.done()

    @property
    def failure(self) -> BaseException | None:
        """What pushing it raised; None if it is pushed, or not over yet."""
        return self._future.exception() if self.done else None

    def revision(self, timeout: float | None = None) -> Revision:
        """Return it once the operator has it.

        Raises Overtaken when a newer one was queued before it was sent, what pushing it raised, and
        TimeoutError.
        """
        return self._future.result(timeout)

    def wait(self, engines: Engines = "all", timeout: float = 300.0) -> Revision:
        """As Revision.wait, once the operator has it."""
        return self.revision(timeout).wait(engines, timeout)

    def settle(self, made: Callable[[], Revision]) -> None:
        """Take what `made` returns or raises for the outcome."""
        try:
            self._future.set_result(made())
        except BaseException as error:  # also what would end the thread: somebody waits for it
            if isinstance(error, LorafleetError):
                _LOG.warning("a push in the background failed: %s", error)
            else:
                _LOG.exception("a push in the background failed")
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Take an error for the outcome."""
        self._future.set_exception(error)


@dataclass(frozen=True)
class _Job:
    content: Content
    manifest: pb.PushManifest
    progress: Callable[[int, int], None]
    pending: Pending
    memory: mmap.mmap


class Background:
    """Sends with `send`, one revision after another; of each adapter at most one waits.

    So the host holds at most two copies of an adapter: the one that is being sent and the latest.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._waiting: dict[str, _Job] = {}
        self._free: list[mmap.mmap] = []
        self._ending = False
        self._thread: threading.Thread | None = None
        self._process = 0  # the thread's

    def put(
        self, content: Content, manifest: pb.PushManifest, progress: Callable[[int, int], None]
    ) -> Pending:
        """Copy the tensors and return; what waited for the same adapter is dropped.

        Raises OtherProcess, and ValueError once it is closed.
        """
        if self._process not in (0, os.getpid()):
            raise OtherProcess
        with self._changed:
            self._make_way(manifest)
            memory = self._memory(content.size)
        job = _Job(_copied(content, memory), manifest, progress, Pending(), memory)
        with self._changed:
            self._make_way(manifest)  # for what came, or for the end, while this was copied
            self._waiting[manifest.name] = job
            if self._thread is None:
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._work, name="push", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return job.pending

    def close(self, *, drop: bool = False) -> None:
        """Return when all that was put is sent, or with `drop` when the one that is sent is."""
        if self._process not in (0, os.getpid()):
            return  # the thread, and what waits for it, are the other process's
        with self._changed:
            while drop and self._waiting:
                self._drop(self._waiting.popitem()[1], "dropped: the training ended")
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ending)
                if not self._waiting:
                    return
                job = self._waiting.pop(next(iter(self._waiting)))
            job.pending.settle(partial(self._sent, job))

    def _sent(self, job: _Job) -> Revision:
        """Send; the memory is free before anybody hears of the outcome and puts the next."""
        try:
            return self._send(job.content, job.manifest, job.progress)
        finally:
            with self._changed:
                self._free.append(job.memory)

    def _make_way(self, manifest: pb.PushManifest) -> None:
        if self._ending:
            raise ValueError("this Fleet is closed")
        before = self._waiting.pop(manifest.name, None)
        if before is not None:
            self._drop(before, f"overtaken by step {manifest.step}")

    def _drop(self, job: _Job, why: str) -> None:
        line = f"step {job.manifest.step} of {job.manifest.name} was {why} before it was sent"
        _LOG.info("%s", line)
        job.pending.fail(Overtaken(line))
        self._free.append(job.memory)

    def _memory(self, size: int) -> mmap.mmap:
        """Return memory that an earlier copy had, if it fits; else what was kept is let go."""
        for each in self._free:
            if len(each) >= max(size, 1):
                self._free.remove(each)
                return each
        self._free.clear()
        memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(
            OSError, AttributeError
        ):  # a system without: a fault for each 4 KiB, in the step
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


@uninterrupted()
def _copied(content: Content, memory: mmap.mmap) -> Content:
    """Return the content with its tensors in `memory`; what shares memory is copied once."""
    tensors, places = content.distinct()
    whole, at = memoryview(memory), 0
    for _, piece in read(tensors):
        whole[at : at + len(piece)] = piece
        at += len(piece)
    ends = list(accumulate(map(size_of, tensors)))
    copied = [
        FileTensor(
            each.dtype, each.shape, whole[ends[place] - size_of(each) : ends[place]], same=each.same
        )
        for each, place in zip(content.tensors, places, strict=True)
    ]
    return replace(content, tensors=copied)
