"""What the sidecar was asked to serve, kept in the store's index so that a restart finishes it.

It holds wishes, not steps: after any crash the agent compares it with what the engine reports
and does what is missing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# What the engine keeps of an adapter (sidecar.proto, LoadAdapterRequest.residency).
GPU, HOST, ON_DEMAND, SHARED = "gpu", "host", "onDemand", ""
RESIDENCIES = (GPU, HOST, ON_DEMAND, SHARED)
# A revision during whose load the engine died this often is not tried again.
QUARANTINE_AFTER = 2


@dataclass(frozen=True)
class Target:
    """One revision as the engine loads it."""

    digest: str
    loader: str  # "direct" or "device"


@dataclass(frozen=True)
class Probe:
    """A completion that a revision has to give before clients get it."""

    prompt: str
    expect: str = ""  # empty: any will do
    max_tokens: int = 1


@dataclass(frozen=True)
class LoadWish:
    """One request to load a staged revision; `drain_seconds` bounds the wait, not the drain."""

    adapter: str
    served_name: str
    digest: str
    loader: str = "direct"
    residency: str = SHARED
    publish: bool = True
    drain_seconds: float = 60.0
    keep: tuple[str, ...] = ()
    free_others: bool = False
    abort_seconds: int | None = None
    probe: Probe | None = None
    two_phase: bool = False


@dataclass(frozen=True)
class ServedName:
    """One served name, its owner, and the revisions that it points at or shall point at."""

    served_name: str
    adapter: str  # owner, "<namespace>/<name>"; empty when adopted from the engine alone
    current: Target | None = None  # published and proved
    coming: Target | None = None  # loading, or loaded and waiting to be published
    publish_coming: bool = False  # move the name to `coming` once it is loaded
    residency: str = SHARED
    removing: bool = False  # hide the name, drain, unload, forget
    drop_staged: bool = False  # with `removing`: free the arena too
    base_model: str = ""  # what the engine served when it was asked for; empty: not known
    keep: tuple[str, ...] = ()  # digests that stay staged for a rollback, while there is room
    free_others: bool = False  # replaced revisions that are not kept leave the arena
    abort_seconds: int | None = None  # what still runs on a replaced revision then is aborted
    probe: Probe | None = None  # asked of `coming` before it is published
    in_doubt: bool = False  # whether it may be decided that `current` is not served any more

    @property
    def on_demand(self) -> bool:
        """Whether nothing of it is loaded before a request asks for it."""
        return self.residency == ON_DEMAND

    @property
    def goal(self) -> Target | None:
        """Return what the name shall point at, None while it is only prepared or removed."""
        if self.removing:
            return None
        return self.coming if self.coming and self.publish_coming else self.current

    @property
    def steps(self) -> list[tuple[Target, bool]]:
        """Return the revisions to bring up, in order, each with whether the name moves to it."""
        if self.removing:
            return []
        moving = self.coming is not None and self.publish_coming
        found = [] if moving or self.current is None else [(self.current, not self.in_doubt)]
        if self.coming is not None:
            found.append((self.coming, self.publish_coming))
        return found

    def targets(self) -> set[Target]:
        """Return the revisions that shall stay loaded for this name."""
        if self.removing:
            return set()
        return {each for each in (self.current, self.coming) if each is not None}


@dataclass
class Desired:
    """The table of served names, and what is known of revisions that took the engine down."""

    names: dict[str, ServedName] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)  # digest -> engine deaths at its load
    loading: str = ""  # digest of the load in progress
    loading_instance: str = ""  # the engine instance that was asked
    save: Callable[[Any], None] = field(default=lambda _table: None, repr=False)

    @classmethod
    def restore(cls, table: Any, save: Callable[[Any], None]) -> Desired:
        """Return the table that `store` wrote, empty for None. Raises ValueError for anything else."""
        if table is None:
            return cls(save=save)
        try:
            names = {str(raw["served_name"]): _name_from(raw) for raw in table["names"]}
            deaths = {str(key): int(value) for key, value in table["deaths"].items()}
            loading, instance = (str(each) for each in table["loading"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"the table of served names cannot be read: {error!r}") from error
        return cls(names, deaths, loading, instance, save)

    def store(self) -> None:
        """Make the table durable."""
        self.save(
            {
                "names": [asdict(each) for each in self.names.values()],
                "deaths": self.deaths,
                "loading": [self.loading, self.loading_instance],
            }
        )

    def put(self, name: ServedName) -> None:
        """Set one served name, durable on return."""
        self.names[name.served_name] = name
        self.store()

    def forget(self, served_name: str) -> None:
        """Remove one served name, durable on return; deaths stay with their digests."""
        self.names.pop(served_name, None)
        self.store()

    def give_up_coming(self, served_name: str) -> None:
        """Drop the revision that was refused, and a name that never meant another."""
        name = self.names[served_name]
        if name.current is None:
            self.forget(served_name)
        elif name.coming is not None:
            self.update(served_name, coming=None, publish_coming=False)

    def forgive(self, digests: Iterable[str]) -> None:
        """Forget the deaths of revisions that their adapter gave up, durable on return."""
        guilty = (set(digests) & self.deaths.keys()) - self.digests()
        if guilty:
            self.deaths = {key: n for key, n in self.deaths.items() if key not in guilty}
            self.store()

    def update(self, served_name: str, **changes: Any) -> ServedName:
        """Change fields of one served name, durable on return."""
        changed = replace(self.names[served_name], **changes)
        self.put(changed)
        return changed

    def digests(self) -> set[str]:
        """Return the digests that some name needs, so that the arena keeps them."""
        return {target.digest for target in self.targets()}

    def kept(self) -> set[str]:
        """Return the digests that some name may be moved back to."""
        return {digest for each in self.names.values() for digest in each.keep}

    def targets(self) -> Iterator[Target]:
        """Yield every revision that shall stay loaded."""
        for each in self.names.values():
            yield from each.targets()

    def begin_load(self, digest: str, instance: str) -> None:
        """Note that this load may be what an engine dies of."""
        self.loading, self.loading_instance = digest, instance
        self.store()

    def settle_load(self, digest: str, *, died: bool = False, proved: bool = False) -> None:
        """Close the noted load: the engine died in it, or served the revision (all is forgiven).

        With neither, the engine refused it: that says nothing about earlier deaths. No-op if
        another load is noted.
        """
        if self.loading != digest:
            return
        if died:
            self.deaths[self.loading] = self.deaths.get(self.loading, 0) + 1
        elif proved:
            self.deaths.pop(self.loading, None)
        self.loading = self.loading_instance = ""
        self.store()

    def quarantined(self, digest: str) -> bool:
        """Whether the engine died too often at this revision's load."""
        return self.deaths.get(digest, 0) >= QUARANTINE_AFTER

    def in_restore_order(self) -> list[str]:
        """Return the served names, those with a suspect revision last."""

        def suspicion(name: ServedName) -> int:
            return max((self.deaths.get(t.digest, 0) for t in name.targets()), default=0)

        return sorted(self.names, key=lambda name: suspicion(self.names[name]))


def accepted(
    wish: LoadWish, old: ServedName | None, base_model: str, *, asleep: bool
) -> ServedName:
    """Return the entry of `wish`'s served name, which was `old`, once the wish is taken.

    `asleep`: the engine has nothing of the name, and a request has to come before it gets any.
    """
    target = Target(wish.digest, wish.loader)
    current = old.current if old is not None and not old.removing else None
    coming: Target | None = None
    publish = False
    if wish.publish and (asleep or wish.two_phase):
        current = target  # proved before, or there is nothing to be proved before a request comes
    elif target != current:
        coming, publish = target, wish.publish
    elif not wish.publish and old is not None:
        coming = old.coming
    return ServedName(
        wish.served_name,
        wish.adapter,
        current,
        coming,
        publish,
        wish.residency,
        base_model=base_model,
        keep=wish.keep,
        free_others=wish.free_others,
        abort_seconds=wish.abort_seconds,
        probe=wish.probe if coming is not None else None,
        # What sleeps is brought by a request, which must not wait for an operator.
        in_doubt=wish.two_phase and coming is not None and wish.residency != ON_DEMAND,
    )


def _name_from(raw: dict[str, Any]) -> ServedName:
    values = dict(raw)
    if values.pop("pinned", False):  # as older versions wrote it
        values["residency"] = GPU
    for key in ("current", "coming"):
        values[key] = Target(**values[key]) if values[key] else None
    values["keep"] = tuple(values.get("keep", ()))
    values["probe"] = Probe(**values["probe"]) if values.get("probe") else None
    return ServedName(**values)
