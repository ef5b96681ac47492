"""Loads and rebuilds beside the steps: others run on, and the slot is right when it is used."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
import tiny_models
from plugin_requests import load_for_step, ours
from slot_probe import differing, snapshot, soil

PROMPT: dict[str, list[int]] = {"prompt_token_ids": [1, 5, 9, 42, 7]}
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _a_part_at_a_time(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lorafleet_vllm import background

    engine.clear()
    for name in ("SLICE_SECONDS", "PAUSE_SLICE_SECONDS"):
        monkeypatch.setattr(background, name, 0.0)
    limits = engine.residency.limits._replace(group_bytes=0)  # each layer is written alone
    monkeypatch.setattr(engine.residency, "limits", limits)


def staged(engine: Any, lora_int_id: int, seed: int, loader: str = "direct") -> Any:
    folder = tiny_models.make_adapter(
        engine.folder / f"a{next(_numbers)}", tiny_models.dense_modules(), seed=seed, rank=4
    )
    return ours(engine.arena.volume, lora_int_id, engine.arena.add(folder), loader)


def load(engine: Any, request: Any) -> int:
    """Bring `request` in a part at a time; returns how many turns it took."""
    engine.residency.background.begin(request)
    for turn in itertools.count(1):
        answer = engine.residency.background.progress(request.lora_int_id)
        assert answer["error"] == ""
        if answer["done"]:
            return turn
    raise AssertionError


def slot_of(engine: Any, lora_int_id: int) -> dict[str, Any]:
    manager = engine.manager
    return snapshot(manager, manager.lora_index_to_id.index(lora_int_id))


def ask(engine: Any, request: Any, tokens: int) -> str:
    from vllm import SamplingParams

    name = f"r{next(_numbers)}"
    greedy = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.llm.llm_engine.add_request(name, PROMPT, greedy, lora_request=request)
    return name


def run(engine: Any) -> dict[str, list[list[int]]]:
    """Step until nothing is left; returns for each request its tokens after each of its steps."""
    told: dict[str, list[list[int]]] = {}
    while engine.llm.llm_engine.has_unfinished_requests():
        for output in engine.llm.llm_engine.step():
            told.setdefault(output.request_id, []).append(list(output.outputs[0].token_ids))
    return told


def test_a_load_in_parts_fills_the_slot_that_a_load_at_once_fills(engine: Any) -> None:
    request = staged(engine, 1, seed=1)
    for index in range(engine.manager.lora_slots):
        soil(engine.manager, index)
    turns = load(engine, request)
    plan = engine.manager.get_adapter(1).plan
    assert turns > len(plan.layers) > 1  # a part a turn, after those of the plan
    found = slot_of(engine, 1)
    engine.lora.remove_adapter(1)
    assert differing(load_for_step(engine.lora, request), found) == []
    assert engine.residency.stats.loads == 2


def test_a_request_waits_alone_for_its_slot_and_others_run_on(engine: Any) -> None:
    first, second, third = (staged(engine, number, seed=number) for number in (1, 2, 3))
    alone = {}
    for request in (first, second, third):
        load(engine, request)
        name = ask(engine, request, 4)
        alone[request.lora_int_id] = run(engine)[name][-1]
    assert len({tuple(tokens) for tokens in alone.values()}) == 3
    assert engine.manager.lora_index_to_id.count(None) == 0
    load_for_step(engine.lora, first)
    load_for_step(engine.lora, second)  # the slots are theirs, the third is in the host tier
    gate = engine.llm.llm_engine.engine_core.engine_core.scheduler.lorafleet_gate
    held = gate.held
    running, waiting = ask(engine, first, 60), ask(engine, third, 4)
    core = engine.llm.llm_engine
    progress = []
    told: list[int] = []
    while core.has_unfinished_requests():
        for output in core.step():
            if output.request_id == running and not told:
                progress.append(len(output.outputs[0].token_ids))
            elif output.request_id == waiting:
                told = list(output.outputs[0].token_ids)
    turns = gate.held - held
    parts = len(engine.manager.get_adapter(3).plan.layers)
    assert turns >= parts > 1  # it waited a turn for each part of its fill
    assert progress[-1] >= parts  # while the other got a token a turn
    assert told == alone[3]
    assert engine.manager.lora_index_to_id.count(1) == 1  # whoever runs keeps its slot
    assert engine.manager.lora_index_to_id.count(2) == 0


def test_more_adapters_than_slots_are_served_in_turn_each_with_its_own(engine: Any) -> None:
    requests = [staged(engine, number, seed=number) for number in (1, 2, 3, 4)]
    alone = {}
    for request in requests:
        load(engine, request)
        name = ask(engine, request, 5)
        alone[request.lora_int_id] = run(engine)[name][-1]
    asked = [(ask(engine, request, 5), request) for _ in range(5) for request in requests]
    told = run(engine)
    assert {r.lora_int_id: told[name][-1] for name, r in asked} == alone
    for name, request in asked:
        assert told[name][-1] == alone[request.lora_int_id]


@pytest.mark.parametrize("loader", ["direct", "device"])
def test_an_evicted_adapter_comes_back_in_parts_from_host_memory(engine: Any, loader: str) -> None:
    request = staged(engine, 1, seed=1, loader=loader)
    load(engine, request)
    expected = slot_of(engine, 1)
    for number in (2, 3, 4):  # max_cpu_loras is 3
        load(engine, staged(engine, number, seed=number))
    assert 1 not in engine.manager.list_adapters()
    for index in range(engine.manager.lora_slots):
        soil(engine.manager, index)
    name = ask(engine, request, 2)
    run(engine)
    assert name
    assert differing(slot_of(engine, 1), expected) == []
    stats = engine.residency.stats
    assert (stats.loads, stats.rebuilds) == (4, 1)
    assert stats.offloads == (1 if loader == "device" else 0)


def test_a_fill_that_fails_leaves_nothing_and_its_line(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lorafleet_vllm import fills

    load(engine, staged(engine, 1, seed=1))
    before = slot_of(engine, 1)
    request = staged(engine, 2, seed=2)
    whole, written = fills.write_layer, itertools.count()

    def breaking(layer: Any, slot: Any) -> None:
        if next(written) == 3:
            raise RuntimeError("the bus is on fire")
        whole(layer, slot)

    monkeypatch.setattr(fills, "write_layer", breaking)
    engine.residency.background.begin(request)
    answer = {"done": False, "error": ""}
    while not answer["done"]:
        answer = engine.residency.background.progress(2)
    assert answer["error"].startswith("adapter t/x2@")
    assert "the bus is on fire" in answer["error"]
    assert engine.lora.list_adapters() == {1}
    assert engine.residency.known.keys() == {1}
    assert differing(slot_of(engine, 1), before) == []
    free = engine.manager.lora_index_to_id.index(None)
    assert not any(tensor.any() for tensor in snapshot(engine.manager, free).values())


def test_slots_are_written_again_after_their_memory_was_taken_away(engine: Any) -> None:
    for number in (1, 2):
        request = staged(engine, number, seed=number)
        load(engine, request)
    ask(engine, request, 2)
    run(engine)
    expected = [slot_of(engine, number) for number in (1, 2)]
    for index in range(engine.manager.lora_slots):
        soil(engine.manager, index)
    mapping = engine.manager._last_mapping
    engine.residency.refill()
    for number, before in zip((1, 2), expected, strict=True):
        assert differing(slot_of(engine, number), before) == []
    assert engine.residency.stats.refills == 1
    # What a step keeps beside the slots was in that memory too: the same step has to make it anew.
    written = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.manager, "_set_adapter_mapping", written.append)
        engine.manager.set_adapter_mapping(mapping)
    assert written == [mapping]


def test_work_behind_steps_is_done_for_the_caller_but_registers_nothing(engine: Any) -> None:
    request = staged(engine, 1, seed=1)
    background = engine.residency.background
    background.begin(request)
    for _ in range(400):
        background.behind_step()
    assert engine.lora.list_adapters() == set()  # built, and that is all
    answer = background.progress(1)
    assert (answer["busy"], answer["done"]) == (False, False)
    assert engine.lora.list_adapters() == {1}
    for _ in range(400):
        background.behind_step()
    assert background.progress(1) == {"done": True, "error": "", "busy": False}
    found = slot_of(engine, 1)
    engine.lora.remove_adapter(1)
    assert differing(load_for_step(engine.lora, request), found) == []


def test_a_load_goes_on_behind_the_steps_of_others(engine: Any) -> None:
    running, coming = staged(engine, 1, seed=1), staged(engine, 2, seed=2)
    load(engine, running)
    ask(engine, running, 200)
    background, core = engine.residency.background, engine.llm.llm_engine
    core.step()
    background.begin(coming)
    steps = 0
    while not background.progress(2)["done"]:
        core.step()
        steps += 1
    assert steps >= len(engine.manager.get_adapter(2).plan.layers)  # one part behind each
    assert core.has_unfinished_requests()
    run(engine)


def test_one_that_keeps_its_place_in_host_memory_shares_the_slots(engine: Any) -> None:
    requests = {n: staged(engine, n, seed=1) for n in range(1, 6)}
    engine.lora.add_adapter(requests[1])
    engine.residency.keep(1, "host")
    for lora_int_id in (2, 3, 4, 5):
        engine.lora.set_active_adapters({requests[lora_int_id]}, None)
    assert engine.lora.list_adapters() == {1, 4, 5}
    assert set(engine.manager.lora_index_to_id) == {4, 5}
    assert engine.residency.stats.rebuilds == 0
    engine.residency.keep(1, "gpu")
    engine.lora.set_active_adapters({requests[1]}, None)
    for lora_int_id in (2, 3):
        engine.lora.set_active_adapters({requests[lora_int_id]}, None)
    assert 1 in engine.manager.lora_index_to_id, "it is pinned to the slot that it gets later"


def test_one_that_is_there_on_demand_goes_first_unless_the_step_uses_it(engine: Any) -> None:
    requests = {n: staged(engine, n, seed=1) for n in range(1, 6)}
    for lora_int_id in (1, 2, 3):
        engine.lora.add_adapter(requests[lora_int_id])
    engine.residency.keep(3, "onDemand")
    engine.lora.set_active_adapters({requests[3]}, None)
    engine.lora.set_active_adapters({requests[4]}, None)
    assert engine.lora.list_adapters() == {1, 2, 4}, "3 was the last one used, and goes first"
    engine.residency.keep(4, "onDemand")
    engine.lora.set_active_adapters({requests[4], requests[5]}, None)
    assert engine.lora.list_adapters() == {2, 4, 5}


def test_a_load_beside_a_request_makes_no_step_wait_for_new_metadata(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, coming = staged(engine, 1, seed=1), staged(engine, 2, seed=2)
    load(engine, running)
    alone = ask(engine, running, 12)
    expected = run(engine)[alone][-1]
    name = ask(engine, running, 12)
    core, told = engine.llm.llm_engine, []
    for _ in range(3):
        core.step()
    made: list[object] = []
    manager = engine.manager
    whole = manager._set_adapter_mapping
    monkeypatch.setattr(manager, "_set_adapter_mapping", lambda m: (made.append(m), whole(m)))
    load(engine, coming)
    assert engine.manager.lora_index_to_id.count(2) == 1
    for _ in range(3):
        core.step()
    engine.lora.remove_adapter(2)
    while core.has_unfinished_requests():
        told += [list(output.outputs[0].token_ids) for output in core.step()]
    assert made == []
    assert told[-1] == expected, name


def test_a_plan_is_freed_behind_the_steps_that_come_and_at_once_if_none_do(engine: Any) -> None:
    from lorafleet_vllm.slots import LayerFill

    def living() -> int:
        gc.collect()
        found = (each for each in gc.get_objects() if isinstance(each, LayerFill))
        return sum(any(fill.pieces for fill in each.fills) for each in found)

    def steps(count: int) -> None:
        for _ in range(count):
            engine.residency.background.behind_step()

    request = staged(engine, 1, seed=1)
    steps(50)  # other tests' plans
    before = living()
    load(engine, request)
    layers = living() - before
    assert layers > 4
    steps(1)  # more may come
    engine.lora.remove_adapter(1)
    assert living() - before == layers
    steps(1)
    assert 0 < living() - before < layers  # four, whatever is in them
    steps(layers)
    assert living() == before
