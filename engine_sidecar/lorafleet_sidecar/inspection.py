"""What a volume holds, for people, read from its index without changing anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorafleet_sidecar import index
from lorafleet_sidecar.desired import GPU, HOST, Desired

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_sidecar.desired import ServedName

_MIB = 1 << 20


def inspect_volume(volume: Path) -> str:
    """Return a text of revisions, transfers and served names. Raises OSError or ValueError."""
    limit = (volume / "arena").stat().st_size
    try:
        state = index.parse((volume / index.NAME).read_bytes(), limit)
    except index.IndexDamaged as error:
        raise ValueError(f"{volume / index.NAME} is damaged: {error}") from error
    taken = sum(extent.size for extent in state.extents())
    lines = [f"arena: {taken / _MIB:.0f} MiB of {limit / _MIB:.0f} MiB taken"]
    for entry in sorted(state.revisions.values(), key=lambda each: each.used):
        notes = f" ({', '.join(entry.notes)})" if entry.notes else ""
        lines.append(
            f"revision {entry.digest} of {entry.adapter}: rank {entry.rank}, "
            f"{entry.extent.size / _MIB:.0f} MiB at {entry.extent.offset}{notes}"
        )
    lines += [
        f"transfer {entry.staging_id} of {entry.fingerprint}: {entry.extent.size / _MIB:.0f} MiB"
        for entry in state.stagings.values()
    ]
    lines += [f"plain files of {digest}" for digest in state.plain]
    lines += [f"quarantined range of {digest}" for digest in state.quarantine]
    desired = Desired.restore(state.published, lambda _table: None)
    lines += [_served(name) for name in desired.names.values()]
    lines += [
        f"engine died {count} times while it loaded {digest}"
        for digest, count in desired.deaths.items()
    ]
    return "\n".join(lines) + "\n"


def _served(name: ServedName) -> str:
    parts = [f"served name {name.served_name} of {name.adapter or '(unknown)'}:"]
    if name.current:
        parts.append(f"{name.current.digest} ({name.current.loader})")
    if name.coming:
        verb = "moving to" if name.publish_coming else "prepared"
        parts.append(f"{verb} {name.coming.digest} ({name.coming.loader})")
    if name.residency:
        parts.append({GPU: "pinned", HOST: "kept in host memory"}.get(name.residency, "on demand"))
    if name.removing:
        parts.append("being removed")
    return " ".join(parts)
