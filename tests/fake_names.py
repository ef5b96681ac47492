"""The names that a fake engine answers to, as the plugin has them: served, pinned, and stock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lorafleet import pinned_names
from lorafleet_vllm.first_requests import Absent

if TYPE_CHECKING:
    from collections.abc import Collection

    from fake_engine_books import Revision


@dataclass
class Names:
    """What answers to which name; the engine's own tables."""

    revisions: dict[int, Revision]
    served: dict[str, int]
    stock: dict[str, Revision]

    def find(self, model: str) -> Revision | None:
        """Return what `model` means, None if nothing here does."""
        if model in self.served:
            return self.revisions[self.served[model]]
        pinned = pinned_names.parse(model)
        if pinned is not None:
            return pinned_names.find(pinned, self.here(pinned.served_name))
        return self.stock.get(model)

    def here(self, served_name: str) -> list[Revision]:
        """Return the revisions that pinned names reach."""
        current = self.served.get(served_name)
        return [
            each
            for each in self.revisions.values()
            if each.served_name == served_name
            and (each.lora_int_id == current or (each.verified and not each.closed))
        ]

    def plain(self, model: str) -> str:
        """Return the served name of a pinned one, any other as it is."""
        pinned = pinned_names.parse(model)
        return pinned.served_name if pinned is not None else model

    def waits(self, model: str) -> bool:
        """Whether a request for what is not here waits for the sidecar to bring it."""
        return self.plain(model) not in self.served

    def absent(self, model: str) -> Absent:
        """Return what is said of a name that means nothing here."""
        pinned = pinned_names.parse(model)
        if pinned is None:
            return Absent(404, f"The model `{model}` does not exist.")
        return Absent(404, pinned_names.absence(model, pinned, self.here(pinned.served_name)))

    def hide(self, served_name: str) -> int | None:
        """Take the name away, and with it its revisions' names; return the id that it meant."""
        for each in self.revisions.values():
            each.closed |= each.served_name == served_name
        return self.served.pop(served_name, None)

    def cards(self, base: str, unlisted: Collection[str]) -> list[dict[str, Any]]:
        """Return the lines of /v1/models, without those of `unlisted`."""
        found = {name: self.revisions[number] for name, number in self.served.items()} | self.stock
        return [{"id": base, "root": base, "parent": None}] + [
            {"id": name, "root": revision.path, "parent": base}
            for name, revision in found.items()
            if name not in unlisted
        ]
