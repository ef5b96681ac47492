"""PEFT's target_parameters: the parameters of all experts as one flat pair.

`<..>.experts.base_layer` adapts gate_up_proj and `<..>.experts` down_proj; when only one of
them is adapted its wrapper is called `<..>.experts`. A is [experts*rank, in], the expert
outermost; B is [out, rank*experts], the expert innermost. `flat_shapes` reads these shapes and
those of exporters with three dimensions.

PEFT 0.18 read a parameter [experts, out, in] as [experts, in, out]: A then stands on the
output side, B on the input side, and the pair has to be transposed. Shapes tell which it is;
where they cannot (hidden == 2*moe_intermediate), the other parameter or peft_version does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter
from lorafleet.quoting import shown
from lorafleet.rewrites.flat_shapes import read_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lorafleet.factors import Pair, Window
    from lorafleet.peft_config import AdapterConfig
    from lorafleet.profile import LoraModule
    from lorafleet.rewrites.flat_shapes import Stored

GATE_UP, DOWN = "gate_up_proj", "down_proj"


@dataclass(frozen=True)
class FlatPair:
    """One flat pair: the parameter it adapts, under PEFT's name for it, and its targets."""

    pair: Pair
    parameter: str
    targets: tuple[LoraModule, ...]
    stored: Stored

    def experts_of(self, transposed: bool) -> Iterator[tuple[Window, Window]]:
        """Yield A [rank, in] and B [out, rank] of each expert."""
        for a, b in self.stored.of_experts():
            yield (b.turned(), a.turned()) if transposed else (a, b)

    def fits(self, transposed: bool) -> bool:
        """Return whether the engine's sizes allow this orientation; unknown ones allow both."""
        wanted_in, wanted_out = self.wanted
        found = (self.stored.a.cols, self.stored.b.rows)
        return wanted_in == 0 or found == (
            (wanted_out, wanted_in) if transposed else (wanted_in, wanted_out)
        )

    @property
    def wanted(self) -> tuple[int, int]:
        """The engine's (in, out) of the parameter; (0, 0) if unknown."""
        return self.targets[0].in_features, sum(t.out_features for t in self.targets)


def flat_pairs(
    pairs: dict[str, Pair], targets: tuple[LoraModule, ...], config: AdapterConfig
) -> list[FlatPair]:
    """Return the flat pairs of one `<..>.experts`; `pairs` has "" and maybe "base_layer".

    `targets` are gate and up (or gate_up) and down. Raises InvalidAdapter for shapes that are
    no flat pair, and when nothing tells which parameter a single wrapper adapts.
    """
    gate_up, down = targets[:-1], targets[-1:]
    if len(pairs) == 2:
        roles = [(pairs["base_layer"], GATE_UP, gate_up), (pairs[""], DOWN, down)]
        usual = [_flat_pair(role, config) for role in roles]
        if _possible(usual):
            return usual
        # A model that declares down_proj first has the wrappers the other way round.
        roles = [(pairs[""], GATE_UP, gate_up), (pairs["base_layer"], DOWN, down)]
        swapped = [_flat_pair(role, config) for role in roles]
        return swapped if _possible(swapped) else usual
    only = next(iter(pairs.values()))
    roles = [(only, GATE_UP, gate_up), (only, DOWN, down)]
    named = {name.rpartition(".")[2] for name in config.target_parameters}
    flat = [_flat_pair(role, config) for role in roles if role[1] in named]
    if len(flat) != 1:
        flat = [pair for pair in (_flat_pair(role, config) for role in roles) if _possible([pair])]
    if len(flat) != 1:
        raise InvalidAdapter(f"cannot tell which parameter {shown(only.name)} adapts")
    return flat


def _possible(flat: Sequence[FlatPair]) -> list[bool]:
    """Return the orientations that the shapes allow."""
    return [
        turned
        for turned in (False, True)
        if all(pair.fits(turned) for pair in flat) and _consistent(flat, turned)
    ]


def is_transposed(flat: Sequence[FlatPair], config: AdapterConfig) -> bool:
    """Return the orientation of all flat pairs of one file. Raises InvalidAdapter."""
    possible = _possible(flat)
    if not possible:
        bad = next((pair for pair in flat if not pair.fits(False)), flat[0])
        wanted_in, wanted_out = bad.wanted
        if wanted_in == 0:
            raise InvalidAdapter(f"{shown(bad.pair.name)}: its sizes and those beside it disagree")
        size = bad.stored.experts * bad.stored.a.rows
        raise InvalidAdapter(
            f"{shown(bad.pair.name)}: lora_A has shape {list(bad.pair.a.shape)} and lora_B "
            f"{list(bad.pair.b.shape)}, expected [{size}, {wanted_in}] and [{wanted_out}, {size}]"
        )
    if len(possible) == 1:
        return possible[0]
    transposed = _transposed_by(config.peft_version)
    if transposed is not None:
        return transposed
    said = config.peft_version
    found = f"peft_version {shown(said, 20)}" if said else "no peft_version"
    raise InvalidAdapter(
        f"cannot tell the orientation of experts.{flat[0].parameter} "
        f"(hidden == 2*moe_intermediate and {found})"
    )


def _flat_pair(role: tuple[Pair, str, tuple[LoraModule, ...]], config: AdapterConfig) -> FlatPair:
    pair, parameter, targets = role
    experts_name = pair.name.removesuffix(".base_layer")
    declared = config.rank_for(f"{experts_name}.{parameter}")
    stored = read_shapes(pair, targets[0].num_experts, declared)
    return FlatPair(pair, parameter, targets, stored)


def _consistent(flat: Sequence[FlatPair], transposed: bool) -> bool:
    """Return whether gate_up and down of unknown sizes agree in this orientation."""
    sides = {}
    for pair in flat:
        in_out = (pair.stored.a.cols, pair.stored.b.rows)
        sides[pair.parameter] = in_out[::-1] if transposed else in_out
    if len(sides) < 2:
        return True
    (hidden, fused), (intermediate, hidden_out) = sides[GATE_UP], sides[DOWN]
    return hidden == hidden_out and fused == 2 * intermediate


def _transposed_by(peft_version: str) -> bool | None:
    """Return what this PEFT wrote; None if unknown.

    PEFT counts up for development right after a release: 0.18.1.dev0 is anything before 0.19.0.
    """
    read = re.match(r"(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(\.dev)?", peft_version)
    if not read:
        return None
    version = tuple(int(number or 0) for number in read.group(1, 2, 3))
    if version >= (0, 19, 2) or (version == (0, 19, 1) and not read[4]):
        return False
    if (0, 17, 0) <= version < (0, 19, 0) and not (version > (0, 18, 0) and read[4]):
        return True
    return None
