"""Which engine gets an adapter next: the best score among those that have room.

Scores are tuples, smaller is better, compared from left to right:

refused    the engine has refused this content: only if there is no other
zone, node of Spread: how many replicas the zone has already, whether the node has one
shared     more adapters than places in host memory: they would evict each other
absent     the content is not staged there and would have to be sent
rank       unused rank: engines with a larger max_lora_rank are kept for those that need it
fullness   of Spread the emptiest engine, of BinPack the fullest
bytes      planned bytes for each tensor-parallel rank: what activations move over its bus
name       so that equals are always told apart in the same way
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

from .demands import Policy
from .filters import filter_refusal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from .board import Board, Carrier, Kind, Position, Shelf
    from .demands import AdapterDemand

Score = tuple[bool, int, bool, bool, bool, int, float, int, str]
_NOWHERE: frozenset[str] = frozenset()
_FEW: Final = 16
"""So many engines are looked at one by one; more are met soon enough on the shelves."""


def open_kinds(board: Board, adapter: AdapterDemand) -> set[Kind]:
    """Return the kinds of engines whose filters let the adapter in anew."""
    return {
        kind
        for kind in board.kinds.values()
        if filter_refusal(adapter, kind.sample, held=False) is None
    }


def reason_to_choose(adapter: AdapterDemand, carrier: Carrier) -> str:
    """Return why `best` took this engine, in a few words for people."""
    packed = adapter.policy is Policy.BIN_PACK and carrier.fullness < 1.0
    where = "fullest engine with room" if packed else "emptiest engine with room"
    staged = adapter.digest and adapter.digest in carrier.engine.staged
    more = ", has the content staged" if staged else ""
    return f"{where} ({carrier.load.adapters} adapters){more}"


def best(
    board: Board, adapter: AdapterDemand, kinds: set[Kind], chosen: Collection[str]
) -> Carrier | None:
    """Return the engine of these kinds with the best score, None if none has room."""
    zones, nodes = taken(board, adapter, chosen)
    found: tuple[Score, Carrier] | None = None
    for carrier in _candidates(board, adapter, kinds, chosen, nodes):
        rank = score(adapter, carrier, zones, nodes)
        if found is None or rank < found[0]:
            found = rank, carrier
    return found and found[1]


def taken(
    board: Board, adapter: AdapterDemand, chosen: Collection[str]
) -> tuple[Counter[str], frozenset[str]]:
    """Return how many engines each zone has of those chosen, and their nodes, if that counts."""
    spread = adapter.policy is Policy.SPREAD
    there = [board.carriers[name].engine for name in chosen] if spread else []
    zones = Counter(engine.zone for engine in there if engine.zone)
    return zones, frozenset(engine.node for engine in there if engine.node)


def _candidates(
    board: Board,
    adapter: AdapterDemand,
    kinds: set[Kind],
    chosen: Collection[str],
    nodes: frozenset[str],
) -> Iterator[Carrier]:
    """Yield engines with room, among them the best one."""
    staged = board.staged_on(adapter.digest)
    few = len(staged) <= _FEW
    for name in (*(staged if few else ()), *adapter.refused):
        carrier = board.carriers.get(name)
        if carrier is None or name in chosen or carrier.kind not in kinds:
            continue
        if carrier.lacks(adapter) is None:
            yield carrier
    for kind in kinds:
        for shelf in kind.shelves.values():
            for only in (None,) if few else (None, staged):
                if adapter.policy is Policy.BIN_PACK:
                    yield from _fullest(board, adapter, shelf, chosen, only)
                    continue
                yield from _emptiest(board, adapter, shelf.positions, chosen, _NOWHERE, only)
                if nodes and not shelf.nodes.keys() <= nodes:
                    yield from _emptiest(board, adapter, shelf.positions, chosen, nodes, only)


def _emptiest(
    board: Board,
    adapter: AdapterDemand,
    positions: Iterable[Position],
    chosen: Collection[str],
    nodes: frozenset[str],
    only: Collection[str] | None,
) -> Iterator[Carrier]:
    """Yield the first engine with room that is on none of `nodes`, and among `only` if given."""
    carriers, refused = board.carriers, adapter.refused
    for position in positions:
        name = position[2]
        if name in chosen or name in refused or (only is not None and name not in only):
            continue
        carrier = carriers[name]
        if carrier.engine.node not in nodes and carrier.lacks(adapter) is None:
            yield carrier
            return


def _fullest(
    board: Board,
    adapter: AdapterDemand,
    shelf: Shelf,
    chosen: Collection[str],
    only: Collection[str] | None,
) -> Iterator[Carrier]:
    """Yield the fullest engine with room and a place; if none has a place, the emptiest."""
    positions = shelf.positions
    full = bisect_left(positions, (1.0, 0, ""))
    while full:
        # Engines that are equally full come in the order of their names, not backwards.
        level = bisect_left(positions, (positions[full - 1][0], 0, ""))
        for carrier in _emptiest(board, adapter, positions[level:full], chosen, _NOWHERE, only):
            yield carrier
            return
        full = level
    yield from _emptiest(board, adapter, positions, chosen, _NOWHERE, only)


def score(
    adapter: AdapterDemand, carrier: Carrier, zones: Counter[str], nodes: frozenset[str]
) -> Score:
    """Return the score of one engine beside those that are `taken`."""
    engine = carrier.engine
    fullness, rank_bytes, name = carrier.position
    packed = adapter.policy is Policy.BIN_PACK
    return (
        name in adapter.refused,
        zones[engine.zone],
        engine.node in nodes,
        fullness >= 1.0,
        not adapter.digest or adapter.digest not in engine.staged,
        max(engine.max_lora_rank - (adapter.rank or 0), 0),
        -fullness if packed and fullness < 1.0 else fullness,
        rank_bytes,
        name,
    )
