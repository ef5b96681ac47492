"""The documents build as a site: no broken link or anchor, no page that the navigation forgot."""

from __future__ import annotations

import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    built = subprocess.run(
        [REPOSITORY / "hack" / "site", tmp_path / "site"], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {page.stem for page in (REPOSITORY / "docs").glob("*.md")}
    assert {path.parent.name for path in (tmp_path / "site").glob("*/index.html")} >= pages - {
        "index"
    }
