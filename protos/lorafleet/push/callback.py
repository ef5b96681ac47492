"""A callback of Hugging Face's Trainer (and of all that TRL builds on it) that pushes as it trains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

if TYPE_CHECKING:
    from lorafleet.push.background import Pending
    from lorafleet.push.fleet import Fleet
    from lorafleet.push.revision import Revision


class PushCallback(TrainerCallback):  # type: ignore[misc]
    """Pushes the adapter each `every` steps beside the training, and at its end.

    A step pays for the copy out of the model alone, and a revision that is overtaken before it is sent
    is dropped. At the end the last one is pushed and, with `wait`, waited for on every engine.
    `push`: what Fleet.push takes beside the model, `name` at least.
    """

    def __init__(self, fleet: Fleet, *, every: int = 1, wait: bool = True, **push: Any) -> None:
        self._fleet = fleet
        self._every = every
        self._wait = wait
        self._push = push
        self.pending: Pending | None = None
        """What the last step queued."""
        self.revision: Revision | None = None
        """What the end of the training pushed."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Queue the step's adapter."""
        if state.global_step % self._every == 0:
            self.pending = self._fleet.push_later(
                kwargs["model"], step=state.global_step, **self._push
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Push the last one."""
        self.revision = self._fleet.push(kwargs["model"], step=state.global_step, **self._push)
        if self.revision is not None and self._wait:
            self.revision.wait()
