"""A callback of Hugging Face's Trainer (and of all that TRL builds on it) that pushes as it trains."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from transformers import TrainerCallback

from lorafleet.errors import LorafleetError
from lorafleet.push.failures import Overtaken

if TYPE_CHECKING:
    from lorafleet.push.background import Pending
    from lorafleet.push.fleet import Fleet
    from lorafleet.push.revision import Revision
    from lorafleet.push.safe_point import SafePoint

_LOG: Final = logging.getLogger(__name__)
OnFailure = Literal["raise", "stop", "warn"]


class PushCallback(TrainerCallback):  # type: ignore[misc]
    """Pushes the adapter each `every` steps beside the training, and at its end.

    A step pays for the copy out of the model alone, and a revision that is overtaken before it is sent
    is dropped. At the end the last one is pushed and, with `wait`, waited for on every engine.
    `on_failure`: what a push that failed means. "raise": the training goes on, and its end raises if the
    last adapter cannot be pushed or is not served. "stop": the first step after it raises, too.
    "warn": neither does. Each failure is logged. A model that cannot be pushed at all is raised at once.
    With `safe_point_on_save` each checkpoint is a safe point, for so many seconds at most: engines of
    the pool that grew are recycled before the training goes on. One that cannot be had is logged.
    `push`: what Fleet.push takes beside the model, `name` at least.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        every: int = 1,
        wait: bool = True,
        on_failure: OnFailure = "raise",
        safe_point_on_save: float = 0.0,
        **push: Any,
    ) -> None:
        if on_failure not in get_args(OnFailure):
            raise ValueError(f"on_failure is {on_failure!r}, not {', '.join(get_args(OnFailure))}")
        self._fleet = fleet
        self._every = every
        self._wait = wait
        self._on_failure = on_failure
        self._safe_point_seconds = safe_point_on_save
        self._push = push
        self._queued: list[Pending] = []
        self.pending: Pending | None = None
        """What the last step queued."""
        self.error: BaseException | None = None
        """What the last push failed with; None if it did not."""
        self.revision: Revision | None = None
        """What the end of the training pushed."""
        self.safe_point: SafePoint | None = None
        """What became of the last safe point; None if it could not be had."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Queue the step's adapter."""
        self._hear()
        if self.error is not None and self._on_failure == "stop":
            raise self.error
        if state.global_step % self._every == 0:
            self.pending = self._fleet.push_later(
                kwargs["model"], step=state.global_step, **self._push
            )
            self._queued += [self.pending] if self.pending is not None else []

    def _hear(self) -> None:
        """Learn what came of the pushes that are over; one that was overtaken is none."""
        over = [each for each in self._queued if each.done]
        self._queued = [each for each in self._queued if each not in over]
        for each in over:
            if not isinstance(each.failure, Overtaken):
                self.error = each.failure

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let engines be recycled, from the main process."""
        if not self._safe_point_seconds or not state.is_world_process_zero:
            return
        self.safe_point = None
        try:
            self.safe_point = self._fleet.safe_point(self._push["name"], self._safe_point_seconds)
        except LorafleetError as error:
            _LOG.warning("step %s is no safe point: %s", state.global_step, error)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Push the last one."""
        try:
            self.revision = self._fleet.push(kwargs["model"], step=state.global_step, **self._push)
            if self.revision is not None and self._wait:
                self.revision.wait()
        except LorafleetError as error:
            self.error = error
            if self._on_failure != "warn":
                raise
            _LOG.warning("the last push, of step %s, failed: %s", state.global_step, error)
        else:
            self.error = None
