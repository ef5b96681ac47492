"""Where vLLM checks a model's name: who is asked for an adapter, and what the client gets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from lorafleet_vllm.asking import check_model, check_pooled_model, is_model_supported, resolve_lora
from lorafleet_vllm.first_requests import Absent, FirstRequests
from lorafleet_vllm.loaded import Loaded
from lorafleet_vllm.served_names import ServedNames
from lorafleet_vllm.settings import RevisionPath, Volume


def error(status: int) -> Any:
    return SimpleNamespace(error=SimpleNamespace(code=status))


class Models:
    """As much of vLLM's OpenAIServingModels as is asked; `found` answers for what it lacks."""

    lorafleet_first_requests: Any = "there"

    def __init__(self, found: Any = None, comes: bool = False) -> None:
        self.lora_resolvers: list[Any] = []
        self.lora_requests: dict[str, Any] = {"here": "request of here"}
        self.found, self.comes, self.asked = found, comes, 0

    def is_base_model(self, name: str) -> bool:
        return name == "base"

    async def resolve_lora(self, name: str) -> Any:
        self.asked += 1
        if self.comes:
            self.lora_requests[name] = self.found
        return self.found


class Serving:
    """As much of vLLM's BaseServing; `lenient` is VLLM_SKIP_MODEL_NAME_VALIDATION."""

    def __init__(self, models: Models, lenient: bool = False) -> None:
        self.models, self.lenient = models, lenient

    def _is_model_supported(self, name: str) -> bool:
        return not name or self.lenient or self.models.is_base_model(name)


async def original(_self: Any, _request: Any) -> str:
    return "vLLM's answer"


CASES: dict[str, tuple[str, Any, bool, bool, int, Any]] = {
    "the base model is nobody's to ask for": ("base", None, False, False, 0, "vLLM's answer"),
    "nor is a request without a model": ("", None, False, False, 0, "vLLM's answer"),
    "nor what is here": ("here", None, False, False, 0, "vLLM's answer"),
    "what comes goes on as if it had been here": ("new", "r", True, False, 1, "vLLM's answer"),
    "what does not exist is an error": ("no", error(404), False, False, 1, 404),
    "so is what cannot come now": ("no", error(503), False, False, 1, 503),
    "without validation the base answers to nobody's name": (
        "no", error(404), False, True, 1, "vLLM's answer",
    ),
    "but not for an adapter that cannot come now": ("no", error(503), False, True, 1, 503),
}  # fmt: skip


@pytest.mark.parametrize("sentence", CASES)
async def test_a_check_of_the_model_asks_for_what_is_not_here(sentence: str) -> None:
    name, found, comes, lenient, asked, expected = CASES[sentence]
    models = Models(found, comes)
    serving = Serving(models, lenient)
    answer = await check_model(original)(serving, SimpleNamespace(model=name))
    assert models.asked == asked
    assert (answer if isinstance(answer, str) else answer.error.code) == expected


async def test_all_requests_for_a_name_get_the_request_that_was_published() -> None:
    models = Models()
    models.lorafleet_first_requests = first = FirstRequests(10)
    listening = await first.wanted(0)
    asking = resolve_lora(original)
    waiting = [asyncio.create_task(asking(models, "new")) for _ in range(3)]
    assert (await first.wanted(listening["sequence"]))["names"] == ["new"]
    models.lora_requests["new"] = "request of new"
    first.answer("new", None)
    assert await asyncio.gather(*waiting) == ["request of new"] * 3
    assert (await first.wanted(0))["names"] == []


async def test_at_most_so_many_names_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from lorafleet_vllm import first_requests

    monkeypatch.setattr(first_requests, "MOST_NAMES", 1)
    first = FirstRequests(10)
    await first.wanted(0)
    waiting = asyncio.create_task(first.bring("one"))
    await asyncio.sleep(0)
    absent = await first.bring("two")
    assert absent is not None
    assert absent.status == 503
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await first.wanted(0))["names"] == []


async def test_a_pinned_name_waits_for_its_adapter_and_means_its_revision_alone() -> None:
    models = Models()
    volume = Volume(Path("/volume"))
    names = models.lora_requests = ServedNames(volume, {})
    models.lorafleet_first_requests = first = FirstRequests(10)
    models.lora_resolvers = ["another resolver"]
    listening = await first.wanted(0)
    asking = resolve_lora(original_resolve, refused)
    right, wrong = (asyncio.create_task(asking(models, f"t/a@{d * 6}")) for d in ("ab", "cd"))
    assert (await first.wanted(listening["sequence"]))["names"] == ["t/a"], "one wait for both"
    request = SimpleNamespace(
        lora_name="t/a",
        lora_int_id=1,
        lora_path=volume.lora_path(RevisionPath("ab" * 32, "direct")),
    )
    names.add(Loaded("t/a", "sha256:" + "ab" * 32, "direct", request))
    names["t/a"] = request
    first.answer("t/a", None)
    assert await right is request
    answer = await wrong
    assert answer == Absent(
        404,
        "The model `t/a@cdcdcdcdcdcd` does not exist: of t/a this engine has abababababab.",
    )


async def test_a_pinned_name_of_an_adapter_that_is_served_does_not_wait() -> None:
    models = Models()
    names = models.lora_requests = ServedNames(Volume(Path("/volume")), {})
    names["t/a"] = SimpleNamespace(lora_name="t/a", lora_int_id=1, lora_path="/volume")
    models.lorafleet_first_requests = first = FirstRequests(10)
    await first.wanted(0)
    answer = await resolve_lora(original_resolve, refused)(models, "t/a@cdcdcdcdcdcd")
    line = "The model `t/a@cdcdcdcdcdcd` does not exist: this engine has no revision of t/a."
    assert answer == Absent(404, line)
    assert first.figures()["outcomes"] == {}


def refused(_name: str, absent: Absent | None) -> Absent | None:
    return absent


async def original_resolve(_self: Any, _name: str) -> str:
    return "another resolver's answer"


@pytest.mark.parametrize("lenient", [False, True])
def test_the_base_model_answers_to_no_pinned_name_even_without_validation(lenient: bool) -> None:
    models = Models()
    serving = Serving(models, lenient)
    supported = is_model_supported(Serving._is_model_supported)
    names = ("base", "", "nobody", "t/a@cdcdcdcdcdcd", "t/a@latest")
    found = [supported(serving, name) for name in names]
    assert found == [True, True, lenient, False, lenient]
    assert supported(serving, None), "a request without a model"


async def test_where_vllm_ignores_what_its_check_finds_the_answer_is_raised() -> None:
    request = SimpleNamespace(model="no")
    for status in (404, 503):
        found = error(status)
        found.error.message = "one line"
        with pytest.raises(HTTPException, match="one line") as raised:
            await check_pooled_model(original)(Serving(Models(found)), request)
        assert raised.value.status_code == status
    here = SimpleNamespace(model="here")
    assert await check_pooled_model(original)(Serving(Models()), here) == "vLLM's answer"
