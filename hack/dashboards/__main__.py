"""Writes charts/lorafleet/dashboards/*.json: `python -m dashboards [--check]`, hack on the path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dashboards.engine_memory import ENGINE_MEMORY
from dashboards.fleet import FLEET
from dashboards.grafana import as_json

FOLDER = Path(__file__).resolve().parents[2] / "charts" / "lorafleet" / "dashboards"


def files() -> dict[Path, str]:
    """Return the text of each file."""
    found = {}
    for one, others in ((FLEET, (ENGINE_MEMORY,)), (ENGINE_MEMORY, (FLEET,))):
        path = FOLDER / f"{one.uid.removeprefix('lorafleet-')}.json"
        found[path] = json.dumps(as_json(one, others), indent=1) + "\n"
    return found


def main() -> int:
    """Write the files, or with --check say whether they are current."""
    stale = {p: text for p, text in files().items() if not p.exists() or p.read_text() != text}
    if sys.argv[1:] == ["--check"]:
        for path in stale:
            print(f"{path.name} is stale: run hack/dashboards/write", file=sys.stderr)
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
