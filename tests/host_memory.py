"""What /proc says about a process's host memory, by what is mapped."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ \S+ \d+\s*(?P<name>.*)")
_FIELD = re.compile(r"(?P<field>\w+):\s+(?P<kib>\d+) kB")
_KIB = 1024
ANONYMOUS = "anonymous"


def mapped(text: str) -> dict[str, Counter[str]]:
    """Return bytes by mapping name and field (Rss, Pss, Locked ..) of /proc/<pid>/smaps.

    Mappings of one name are added up; those without a name, heaps and stacks are `anonymous`.
    """
    found: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in text.splitlines():
        field = _FIELD.match(line)
        if field:
            current[field["field"]] += int(field["kib"]) * _KIB
            continue
        mapping = _MAPPING.match(line)
        if mapping:
            name = mapping["name"]
            if not name or name.startswith("["):
                name = ANONYMOUS
            current = found.setdefault(name, Counter())
    return found


def of_process(pid: int | None = None) -> dict[str, Counter[str]]:
    """Return `mapped` of a process, by default this one."""
    return mapped(Path(f"/proc/{pid or os.getpid()}/smaps").read_text())


def fields(text: str) -> dict[str, int]:
    """Return every line of `text` that counts kB, in bytes."""
    return {m["field"]: int(m["kib"]) * _KIB for m in _FIELD.finditer(text)}


def status(pid: int | None = None) -> dict[str, int]:
    """Return the memory lines of /proc/<pid>/status (VmLck, VmPin, RssAnon ..)."""
    return fields(Path(f"/proc/{pid or os.getpid()}/status").read_text())


def private(maps: dict[str, Counter[str]], *, but: Path) -> int:
    """Return the resident bytes of everything that is not a view of the file `but`."""
    return sum(each["Rss"] for name, each in maps.items() if not name.startswith(str(but)))


def grown(
    before: dict[str, Counter[str]], after: dict[str, Counter[str]], least: int = 1 << 20
) -> dict[str, int]:
    """Return by how many resident bytes each mapping grew, if by `least` or more either way."""
    names = before.keys() | after.keys()
    empty: Counter[str] = Counter()
    growth = {
        name: after.get(name, empty)["Rss"] - before.get(name, empty)["Rss"] for name in names
    }
    return {name: size for name, size in sorted(growth.items()) if abs(size) >= least}


def available() -> int:
    """Return the machine's MemAvailable in bytes: it also moves with what no mapping shows."""
    return fields(Path("/proc/meminfo").read_text())["MemAvailable"]
