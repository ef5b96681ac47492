"""Rollouts of TRL's GRPOTrainer from a fleet: each step generates with the adapter of that step."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from lorafleet.errors import EngineRejected, EngineUnreachable
from lorafleet.push import gathering
from lorafleet.push.failures import NotServed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lorafleet.push.fleet import Fleet
    from lorafleet.push.revision import Engines, Revision


class FleetRollouts:
    """The `rollout_func` of a GRPOTrainer (which keeps `use_vllm=False`: the engines are the fleet's).

    When the trainer's step is another than that of the last push, the adapter is pushed and waited for
    on `engines` within `timeout` seconds; then `url`, of an engine or of a router to such, generates. `push`:
    what Fleet.push takes beside the model, `name` at least. `sampling`: more of what vLLM's
    `/v1/completions` takes; the trainer's temperature, top_p and lengths come by themselves.

    The request names the revision (Revision.pinned): an engine that has another one by then says so,
    and NotServed is raised. `pinned=False` asks for whatever the adapter's name means, on engines
    without the plugin.
    """

    def __init__(
        self,
        fleet: Fleet,
        url: str,
        *,
        engines: Engines = "all",
        timeout: float = 300.0,
        sampling: Mapping[str, Any] | None = None,
        pinned: bool = True,
        **push: Any,
    ) -> None:
        self._fleet = fleet
        self._url = url.rstrip("/")
        self._engines: Engines = engines
        self._timeout = timeout
        self._sampling = dict(sampling or {})
        self._pinned = pinned
        self._push = push
        self._step: int | None = None
        self._model = ""
        self.revision: Revision | None = None
        """What the last rollouts came from; None in processes that are not the main one."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Return prompt_ids, completion_ids and logprobs of one completion for each prompt."""
        self.sync(trainer)
        ids = [_ids(trainer.processing_class, prompt) for prompt in prompts]
        choices = self._generate(ids, trainer)
        return {
            "prompt_ids": ids,
            "completion_ids": [choice["token_ids"] for choice in choices],
            "logprobs": [choice["logprobs"]["token_logprobs"] for choice in choices],
        }

    def sync(self, trainer: Any) -> None:
        """Have the engines serve the adapter as it is now."""
        step = trainer.state.global_step
        if step == self._step:
            return
        self._step = None
        self.revision = self._fleet.push(trainer.model, step=step, **self._push)
        self._model = gathering.from_main(self.revision and self._name(self.revision))
        self._step = step

    def _name(self, revision: Revision) -> str:
        """Return what to ask for once the engines serve the revision."""
        revision.wait(self._engines, self._timeout)
        return revision.pinned() if self._pinned else revision.served_name

    def _generate(self, ids: list[list[int]], trainer: Any) -> list[dict[str, Any]]:
        body = {
            "model": self._model,
            "prompt": ids,
            "max_tokens": trainer.max_completion_length,
            "temperature": trainer.temperature,
            "top_p": trainer.top_p,
            "logprobs": 0,
            "return_token_ids": True,
            **self._sampling,
        }
        request = urllib.request.Request(  # noqa: S310 - the caller's own URL
            f"{self._url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as answer:  # noqa: S310
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            line = _line(error)
            if error.code == HTTPStatus.NOT_FOUND and self._pinned:
                raise NotServed(f"{self._url} does not serve step {self._step}: {line}") from None
            raise EngineRejected(f"{self._url} answered {error.code}: {line}") from None
        except OSError as error:
            raise EngineUnreachable(f"{self._url}: {error}") from None
        return sorted(found["choices"], key=lambda choice: int(choice["index"]))


def _line(error: urllib.error.HTTPError) -> str:
    """Return the line of vLLM's answer, or what there is."""
    text = error.read().decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    return " ".join(str(text).split())[:500]


def _ids(tokenizer: Any, prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(prompt)["input_ids"])
    made = tokenizer.apply_chat_template(
        prompt, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return list(made["input_ids"])
