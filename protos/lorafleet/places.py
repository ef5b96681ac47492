"""Where a source module belongs in the engine: the profile's modules, looked up by name."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from lorafleet.profile import LoraModule, ModuleKind
from lorafleet.rewrites import roots

if TYPE_CHECKING:
    from collections.abc import Set

    from lorafleet.profile import EngineProfile

EXPERTS = ".experts"
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_PROJECTIONS = (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2"))
_ALIASES = {name: other for pair in _PROJECTIONS for name, other in (pair, pair[::-1])}


class Form(Enum):
    """How a source module holds the factors of its targets."""

    WHOLE = "one pair for one module"
    ROWS = "one A, B's rows one module after the other"
    EXPERT = "one pair for one expert"
    EXPERT_ROWS = "one expert's A, its B's rows one projection after the other"
    STACK = "three dimensions, experts first"
    STACK_ROWS = "three dimensions, B's rows one projection after the other"
    FLAT = "PEFT's target_parameters: two dimensions, flat over the experts"


class Place(NamedTuple):
    """The targets of one source module, in the order of B's rows."""

    form: Form
    targets: tuple[LoraModule, ...]
    expert: int = 0


class Engine:
    """The profile's modules; with an empty list every name is taken as it is.

    An unknown module has sizes 0, which means that nobody can check them; it is an embedding
    if it is one of `embeddings`, the modules whose keys say so.
    """

    def __init__(self, profile: EngineProfile, embeddings: Set[str] = frozenset()) -> None:
        self.embeddings = embeddings
        self.modules = {module.name: module for module in profile.modules}
        self.known = bool(self.modules)
        self.renamed: dict[tuple[str, str], int] = {}
        self.unclear: tuple[str, ...] = ()  # the first name with two places, and what it may mean
        self._parameters: dict[str, tuple[LoraModule, ...]] = {}  # of all experts, by name

    def place(self, name: str) -> Place | None:
        """Return where `name` belongs, also under another root; None if nowhere.

        The root is that of the engine's own module; two possible ones count as nowhere.
        """
        found = self._locate(name)
        if found is not None or not self.known:
            return found
        places = [
            (other, place)
            for other in roots.alternatives(name)
            if (place := self._locate(other)) is not None
        ]
        if len(places) != 1:
            if places and not self.unclear:
                self.unclear = (name, *(other for other, _ in places))
            return None
        other, place = places[0]
        for change in roots.changes(name, other):
            self._count(change)
        return place

    def _count(self, change: tuple[str, str]) -> None:
        self.renamed[change] = self.renamed.get(change, 0) + 1

    def _locate(self, name: str) -> Place | None:
        head, experts, tail = name.partition(EXPERTS)
        if experts and (not tail or tail[0] == "."):
            return self._locate_experts(head + experts, tail[1:])
        module = self._module(name, ModuleKind.LINEAR)
        if module is not None:
            return Place(Form.WHOLE, (module,))
        split = self._split(name, ModuleKind.LINEAR)
        return Place(Form.ROWS, split) if split else None

    def _locate_experts(self, experts: str, tail: str) -> Place | None:
        """Find `<..>.experts.<tail>`; the index or the name of the parameter may be missing."""
        if tail in ("", "base_layer"):
            for names in (("gate_up_proj", "down_proj"), ("gate_proj", "up_proj", "down_proj")):
                found = [self._projection(experts, name) for name in names]
                if all(found):
                    return Place(Form.FLAT, tuple(module for module in found if module))
            return None
        index, _, projection = tail.partition(".")
        if not (index.isascii() and index.isdigit()):
            index, projection = "", tail
        parameter = f"{experts}.{projection}"
        targets = self._parameters.get(parameter)
        if targets is None:
            targets = self._parameters[parameter] = self._parameter(experts, projection)
        if not targets:
            return None
        if len(targets) == 1:
            form = Form.EXPERT if index else Form.STACK
            if not targets[0].name.endswith(projection):
                self._count((projection, targets[0].name.rpartition(".")[2]))
        else:
            form = Form.EXPERT_ROWS if index else Form.STACK_ROWS
        return Place(form, targets, _number(index))

    def _parameter(self, experts: str, projection: str) -> tuple[LoraModule, ...]:
        """Return the modules of one projection of all experts; () if the engine has none."""
        module = self._projection(experts, projection)
        if module is not None:
            return (module,)
        return self._split(f"{experts}.{projection}", ModuleKind.EXPERTS)

    def _projection(self, experts: str, projection: str) -> LoraModule | None:
        if not self.known and projection == "gate_up_proj":
            return None  # always split: one file then serves every setting of an engine
        module = self._module(f"{experts}.{projection}", ModuleKind.EXPERTS)
        alias = _ALIASES.get(projection)
        if module is None and alias:
            module = self._module(f"{experts}.{alias}", ModuleKind.EXPERTS)
        return module

    def _split(self, name: str, kind: ModuleKind) -> tuple[LoraModule, ...]:
        """Return the modules that a fused name stands for, or () if the engine lacks one."""
        head, _, last = name.rpartition(".")
        parts = [
            self._projection(head, part)
            if kind is ModuleKind.EXPERTS
            else self._module(f"{head}.{part}", kind)
            for part in _FUSED.get(last, ())
        ]
        return tuple(part for part in parts if part) if all(parts) else ()

    def _module(self, name: str, kind: ModuleKind) -> LoraModule | None:
        module = self.modules.get(name)
        if module is None and not self.known:
            kind = ModuleKind.EMBEDDING if name in self.embeddings else kind
            module = self.modules.setdefault(name, LoraModule(name, 0, 0, kind))
        return module


def _number(index: str) -> int:
    """Return the expert's number; one that no engine has for absurdly long digits."""
    return int(index or 0) if len(index) <= 9 else 10**9
