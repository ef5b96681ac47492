"""From a source's header to the canonical image: what is copied where, and the transfer's cuts.

The steps: `keys` reads the names, `places` finds the engine's modules, `assemble` applies the
rewrites, `preflight` refuses, `packing` orders the result, `moves` finds what a chunk feeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lorafleet.assemble import Assembler
from lorafleet.canonical import CanonicalModule, PackedTensor
from lorafleet.canonical_config import canonical_config
from lorafleet.chunk_plan import chunk_plan
from lorafleet.dtypes import SAFETENSORS_NAMES, TORCH_NAMES, common_dtype
from lorafleet.errors import AdapterRejected, InvalidAdapter
from lorafleet.fingerprint import to_text
from lorafleet.header import join_header
from lorafleet.keys import read_keys
from lorafleet.module_checks import TOWER, Facts, dropped, left_out, without_towers
from lorafleet.moves import Copy, Moves
from lorafleet.packing import pack
from lorafleet.places import Engine
from lorafleet.preflight import check_keys, check_modules, warnings
from lorafleet.quoting import shown
from lorafleet.uninterrupted import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lorafleet.factors import Pair
    from lorafleet.header import SafetensorsHeader
    from lorafleet.peft_config import AdapterConfig
    from lorafleet.profile import EngineProfile

__all__ = [
    "CanonicalLayout",
    "CanonicalModule",
    "Copy",
    "PackedTensor",
    "chunk_plan",
    "plan_layout",
]

DATA_ALIGNMENT = 256
"""Of the canonical data section in its extent; copies to a device like it."""
MAX_LINES = 12
"""Of `normalized`; one line tells one kind of rewrite."""


@dataclass(frozen=True, eq=False)
class CanonicalLayout:
    """The plan of one adapter's canonical image; made by `plan_layout`."""

    modules: dict[str, CanonicalModule]
    dtype: str  # torch's name: "bfloat16", "float16", "float32"
    rank: int  # the largest of its modules
    data_bytes: int  # of the canonical data section
    image_header: bytes  # length prefix and JSON; the data section follows it
    config_json: bytes  # the canonical adapter_config.json
    zero_fill: tuple[tuple[int, int], ...]  # (offset, length) to clear before any copy
    normalized: tuple[str, ...]  # rewrites that were needed, for the condition of that name
    notes: tuple[str, ...]  # warnings for people
    moves: Moves
    left_out: str = ""  # how much of the adapter the engine lacks and the spec leaves out

    def copies(self, begin: int, end: int) -> Iterator[Copy]:
        """Yield the copies that bytes [begin, end) of the source's data section feed.

        The range must be one entry of the chunk plan: its ends fall on element borders.
        """
        return self.moves.copies(begin, end)

    def revision_json(
        self,
        digest: str,
        extent_offset: int,
        extent_bytes: int,
        proofs: Mapping[str, tuple[int, int]],
        hashes: Mapping[str, tuple[str, str]],
    ) -> dict[str, Any]:
        """Return `revision.json` of docs/architecture.md for an extent in the arena.

        `proofs` maps each module to the fingerprints of A and of the scaled B, `hashes` to the SHA-256
        hex digests of the packed A and B.
        """
        return {
            "format": 1,
            "digest": digest,
            "dtype": self.dtype,
            "arena": "arena",
            "extent_offset": extent_offset,
            "extent_bytes": extent_bytes,
            "data_offset": extent_offset + len(self.image_header),
            "rank": self.rank,
            "modules": {
                name: {
                    "kind": module.kind.value,
                    "rank": module.rank,
                    "scaling": _listed(module.scaling),
                    "a": {"offset": module.a.offset, "shape": list(module.a.shape)},
                    "b": {"offset": module.b.offset, "shape": list(module.b.shape)},
                    "proof": dict(zip("ab", map(to_text, proofs[name]), strict=True)),
                    "sha256": dict(zip("ab", hashes[name], strict=True)),
                }
                for name, module in self.modules.items()
            },
        }


@uninterrupted()
def plan_layout(
    header: SafetensorsHeader,
    config: AdapterConfig,
    profile: EngineProfile,
    *,
    adapter: str,
    allow_base_mismatch: bool = False,
    adapter_name: str = "",
    drop_unmatched: str = "",
) -> CanonicalLayout:
    """Check `adapter` against the engine and return its canonical layout.

    `adapter_name` picks one adapter of a file whose keys hold several. `drop_unmatched` "tower"
    leaves out modules of a vision or audio tower that the engine lacks, all of them if it does not
    say what it has. Raises InvalidAdapter,
    RankTooHigh, BaseModelMismatch or TooLarge with one line for people.
    """
    try:
        if drop_unmatched not in ("", TOWER):
            raise InvalidAdapter(f"dropUnmatched {shown(drop_unmatched)} is not {TOWER}")
        keys = read_keys(header, adapter_name)
        check_keys(keys)
        pairs = keys.pairs()
        towers: list[Pair] = []
        if drop_unmatched and not profile.modules:
            # Nobody knows what this engine lacks, but it was said what may be left out.
            rest, towers = without_towers(pairs)
            pairs = rest or pairs
        assembly = Assembler(config, Engine(profile, keys.embeddings)).assemble(pairs)
        if drop_unmatched and profile.modules and assembly.placed:
            assembly.unplaced, towers = without_towers(assembly.unplaced)
        facts = Facts(assembly, config, profile, allow_base_mismatch)
        check_modules(facts)
        dtype = SAFETENSORS_NAMES.get(profile.dtype) or common_dtype(
            {entry.dtype for pair in pairs for entry in (pair.a, pair.b)}
        )
        packing = pack(assembly.targets, dtype)
    except AdapterRejected as rejected:
        raise type(rejected)(f"adapter {adapter}: {rejected}") from None
    return CanonicalLayout(
        modules=packing.modules,
        dtype=TORCH_NAMES[dtype],
        rank=max(module.rank for module in packing.modules.values()),
        data_bytes=packing.size,
        image_header=join_header(packing.entries, {"format": "pt"}, DATA_ALIGNMENT),
        config_json=canonical_config(packing.modules, profile.base_model),
        zero_fill=tuple(packing.zeros),
        normalized=_bounded(
            dropped(towers)
            + keys.normalized()
            + assembly.normalized
            + _target_modules(config, packing.modules)
        ),
        notes=warnings(facts),
        moves=Moves(packing.moves, dtype),
        left_out=left_out(assembly.placed, towers),
    )


def _bounded(lines: list[str]) -> tuple[str, ...]:
    """Keep what a condition's message can hold, whatever the source's names were."""
    more = len(lines) - MAX_LINES
    kept = [shown(line, 300) for line in lines[:MAX_LINES]]
    return (*kept, f"and {more} more rewrites") if more > 0 else tuple(kept)


def _target_modules(config: AdapterConfig, modules: Iterable[str]) -> list[str]:
    """Say so when the config's list of targets is not what the file holds."""
    found = sorted({name.rpartition(".")[2] for name in modules})
    declared = config.target_modules
    if isinstance(declared, str) or {name.rpartition(".")[2] for name in declared}.issuperset(
        found
    ):
        return []
    return [f"target_modules = [{', '.join(found)}]"]


def _listed(scaling: float | tuple[float, ...]) -> float | list[float]:
    return scaling if isinstance(scaling, float) else list(scaling)
