"""The `direct` loader: a LoRAModel that is nothing but views of the arena and a plan of copies."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from lorafleet.errors import InvalidAdapter
from lorafleet.profile import ModuleKind
from vllm.lora.lora_model import LoRAModel

from lorafleet_vllm.slot_factors import Pair, Parts, check_rank
from lorafleet_vllm.slot_plan import plan_slot

if TYPE_CHECKING:
    from collections.abc import Generator

    from lorafleet.profile import LoraModule

    from lorafleet_vllm.arena_map import ArenaMap
    from lorafleet_vllm.revision import ModuleTensors, Revision
    from lorafleet_vllm.slot_plan import Limits
    from lorafleet_vllm.slots import SlotPlan
    from lorafleet_vllm.targets import Target

_PART = 64  # modules that are looked up at a time


class ReadyModel(LoRAModel):  # type: ignore[misc]  # vLLM is untyped
    """A LoRAModel that vLLM must neither merge, scale nor pin: it is registered as it is.

    `plan` fills a slot with it.
    """

    plan: SlotPlan


class DirectModel(ReadyModel):
    """A revision in the arena: nothing but the plan of copies out of it.

    vLLM finds no tensors in it that it could merge, scale in place or pin.
    """

    def __init__(self, lora_int_id: int, rank: int, plan: SlotPlan):
        super().__init__(lora_int_id, rank, {})
        self.plan = plan


def build(
    lora_int_id: int,
    revision: Revision,
    arena: ArenaMap,
    targets: dict[str, Target],
    modules: dict[str, Any],
    limits: Limits,
) -> Generator[None, None, DirectModel]:
    """Return the revision as a model of ours, without a copy; yields after each small part.

    Raises InvalidAdapter for a module that the engine lacks. What a layer cannot hold (InvalidAdapter,
    RankTooHigh) is found when the layer is planned, for the first ones can cross the bus meanwhile.
    """
    members: dict[str, list[ModuleTensors | None]] = {}
    widths = Counter(target.wrapper for target in targets.values())
    for number, tensors in enumerate(revision.modules, 1):
        target = find_target(tensors, targets)
        siblings = members.setdefault(target.wrapper, [None] * widths[target.wrapper])
        siblings[target.part] = tensors
        if number % _PART == 0:
            yield
    if not members:
        raise InvalidAdapter(f"{revision.digest}: no LoRA tensors match the engine")

    def pair(tensors: ModuleTensors) -> Pair:
        check_shapes(tensors, targets[tensors.name].module)
        check_rank(tensors.name, tensors.rank, limits.rank)
        return pair_of(tensors, revision, arena)

    def parts_of(wrapper: str) -> Parts:
        return [each and pair(each) for each in members.get(wrapper, ())]

    return DirectModel(lora_int_id, revision.rank, plan_slot(modules, parts_of, limits.group_bytes))


def pair_of(tensors: ModuleTensors, revision: Revision, arena: ArenaMap) -> Pair:
    """Return one module's arena views. Raises InvalidAdapter outside the arena."""
    dtype = getattr(torch, revision.dtype)
    a, b = (
        arena.view(revision.data_offset + extent.offset, extent.shape, dtype)
        for extent in (tensors.a, tensors.b)
    )
    return Pair(tensors.name, a, b, tensors.scaling, tensors.proof[0])


def find_target(tensors: ModuleTensors, targets: dict[str, Target]) -> Target:
    """Return the engine's module of that name. Raises InvalidAdapter if there is none."""
    target = targets.get(tensors.name)
    if target is None:
        raise InvalidAdapter(f"{tensors.name} is not in the engine")
    return target


def check_shapes(tensors: ModuleTensors, module: LoraModule) -> None:
    """Raise InvalidAdapter if `tensors` are not of the module's kind and shapes."""
    rank = tensors.rank
    experts = (module.num_experts,) if module.kind is ModuleKind.EXPERTS else ()
    wanted_a = (*experts, rank, module.in_features)
    wanted_b = (*experts, module.out_features, rank)
    if tensors.kind is not module.kind or tensors.a.shape != wanted_a:
        raise InvalidAdapter(
            f"{tensors.name}: {tensors.kind} lora_A has shape {list(tensors.a.shape)}, "
            f"expected {module.kind} {list(wanted_a)}"
        )
    if tensors.b.shape != wanted_b:
        raise InvalidAdapter(
            f"{tensors.name}: lora_B has shape {list(tensors.b.shape)}, expected {list(wanted_b)}"
        )
