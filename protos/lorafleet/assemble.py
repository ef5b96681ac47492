"""From pairs of tensors to the engine's modules: the rewrites, applied in order."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter
from lorafleet.factors import Pair, Part, Target, Window, expert_name, whole
from lorafleet.places import EXPERTS, Engine, Form, Place
from lorafleet.profile import ModuleKind
from lorafleet.quoting import shown
from lorafleet.rewrites import roots
from lorafleet.rewrites.flat_experts import FlatPair, flat_pairs, is_transposed
from lorafleet.rewrites.fused_linear import last, row_ranges
from lorafleet.rewrites.missing_experts import complete
from lorafleet.rewrites.stacked_experts import MAX_UNKNOWN_EXPERTS, unstack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lorafleet.peft_config import AdapterConfig
    from lorafleet.profile import LoraModule


@dataclass
class Assembly:
    """The canonical modules by name, what no engine module takes, and what was rewritten."""

    targets: dict[str, Target] = field(default_factory=dict)
    unplaced: list[Pair] = field(default_factory=list)
    unclear: tuple[str, ...] = ()  # of these the first with two places in the engine, and both
    placed: int = 0
    normalized: list[str] = field(default_factory=list)


class Assembler:
    """Applies the rewrites to one adapter's pairs."""

    def __init__(self, config: AdapterConfig, engine: Engine) -> None:
        self.config = config
        self.engine = engine
        self.result = Assembly()
        self._split: dict[tuple[str, str], int] = {}
        self._flat: dict[str, tuple[dict[str, Pair], Place]] = {}
        self._stacks = 0
        self._shared = False
        self._flat_shared = False

    def assemble(self, pairs: Iterable[Pair]) -> Assembly:
        """Return all targets; pairs that the engine has no place for are in `unplaced`.

        Raises InvalidAdapter for shapes that no rewrite can read and for duplicates.
        """
        result = self.result
        for pair in pairs:
            place = self.engine.place(pair.name)
            if place is None:
                result.unplaced.append(pair)
                continue
            result.placed += 1
            if place.form is Form.FLAT:
                base = "base_layer" if pair.name.endswith(".base_layer") else ""
                experts = place.targets[0].name.rpartition(".")[0]
                parts = self._flat.setdefault(experts, ({}, place))[0]
                if base in parts:
                    raise InvalidAdapter(
                        f"two tensors for {shown(f'{experts}.{base}'.rstrip('.'))}"
                    )
                parts[base] = pair
            else:
                self._add_placed(pair, place)
        result.unclear = self.engine.unclear
        self._add_flat()
        if not self.engine.known:
            self._measure()
        self._describe()
        return result

    def _add_placed(self, pair: Pair, place: Place) -> None:
        config, form = self.config, place.form
        source = config.adapted_name(pair.name)
        rank = config.rank_for(source)
        if form in (Form.STACK, Form.STACK_ROWS):
            _check_dimensions(pair, 2, 3)
            windows, shared = unstack(pair, place.targets, rank)
            self._stacks += 1
            self._shared |= shared
            for expert, (a, b) in enumerate(windows):
                self._add(source, place.targets, expert, a, b, rank)
            return
        if len(pair.a.shape) != 2 or len(pair.b.shape) != 2:
            _check_dimensions(pair, 2, 2)
        a, b = whole(pair.a), whole(pair.b)
        if form in (Form.ROWS, Form.EXPERT_ROWS):
            names = ", ".join(last(target.name) for target in place.targets)
            key = (last(pair.name), names)
            self._split[key] = self._split.get(key, 0) + 1
        self._add(source, place.targets, place.expert, a, b, rank)

    def _add_flat(self) -> None:
        flat: list[FlatPair] = []
        for pairs, place in self._flat.values():
            if "" not in pairs:
                raise InvalidAdapter(
                    f"{shown(pairs['base_layer'].name)} has no {EXPERTS[1:]} pair beside it"
                )
            flat += flat_pairs(pairs, place.targets, self.config)
        self._flat_shared = any(item.stored.shared for item in flat)
        turned = is_transposed(flat, self.config) if flat else False
        for item in flat:
            name = f"{item.pair.name.removesuffix('.base_layer')}.{item.parameter}"
            rank = self.config.rank_for(name)
            for expert, (a, b) in enumerate(item.experts_of(turned)):
                self._add(name, item.targets, expert, a, b, rank)

    def _add(
        self,
        source: str,
        modules: tuple[LoraModule, ...],
        expert: int,
        a: Window,
        b: Window,
        declared_rank: int,
    ) -> None:
        """Give `a` and the rows of `b` to `modules`. `source` is the name that patterns see."""
        scaling = self.config.scaling_for(source, a.rows) if a.rows else 0.0
        ranges = row_ranges(source, b, modules) if len(modules) > 1 else ((modules[0], 0, b.rows),)
        for module, first, rows in ranges:
            target = self.result.targets.get(module.name)
            if target is None:
                target = self.result.targets[module.name] = Target(module)
            if expert in target.parts:
                raise InvalidAdapter(f"two tensors for {shown(expert_name(module, expert))}")
            own = b if rows == b.rows else b.rows_at(first, rows)
            target.parts[expert] = Part(a, own, declared_rank, scaling, source)

    def _measure(self) -> None:
        """Give modules of unknown size the sizes of their own factors."""
        for name, target in self.result.targets.items():
            part = next(iter(target.parts.values()))
            experts = max(target.parts) + 1 if target.module.kind is ModuleKind.EXPERTS else 0
            if experts > MAX_UNKNOWN_EXPERTS:
                raise InvalidAdapter(
                    f"{shown(name)}: experts.{experts - 1} is above {MAX_UNKNOWN_EXPERTS - 1}"
                )
            target.module = replace(
                target.module,
                in_features=part.a.cols,
                out_features=part.b.rows,
                num_experts=experts,
            )

    def _describe(self) -> None:
        lines = self.result.normalized
        lines += roots.described(self.engine.renamed)
        lines += [f"{old} split into {new} ({n} modules)" for (old, new), n in self._split.items()]
        if self._flat:
            repeated = " (factor repeated)" if self._flat_shared else ""
            lines.append(
                f"per-expert names{repeated} (target_parameters of {len(self._flat)} layers)"
            )
        if self._stacks:
            repeated = " (factor repeated)" if self._shared else ""
            lines.append(f"per-expert names{repeated}, from {self._stacks} stacks of experts")
        lines += complete(self.result.targets, self.engine)


def _check_dimensions(pair: Pair, least: int, most: int) -> None:
    for side, entry in (("lora_A", pair.a), ("lora_B", pair.b)):
        if not least <= len(entry.shape) <= most:
            wanted = "two" if most == 2 else "two or three"
            raise InvalidAdapter(
                f"{shown(pair.name)}: {side} has shape {list(entry.shape)}, "
                f"expected {wanted} dimensions"
            )
