"""The documents build as a site: no broken link or anchor, no page that the navigation forgot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def build(repository: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [repository / "hack" / "site", folder], capture_output=True, text=True, check=False
    )


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    built = build(REPOSITORY, tmp_path / "site")
    assert built.returncode == 0, built.stdout + built.stderr
    pages = {page.stem for page in (REPOSITORY / "docs").glob("*.md")}
    assert {path.parent.name for path in (tmp_path / "site").glob("*/index.html")} >= pages - {
        "index"
    }


@pytest.mark.parametrize(
    ("page", "more", "said"),
    [
        ("push.md", "[x](nowhere.md)", "contains a link 'nowhere.md', but the target is not found"),
        ("push.md", "[x](kubectl.md#no-such-part)", "does not contain an anchor '#no-such-part'"),
        ("push.md", "[x](#no-such-part)", "there is no such anchor on this page"),
        ("push.md", "[x](/kubectl.md)", "contains an absolute link '/kubectl.md'"),
        ("orphan.md", "# A page", 'not included in the "nav" configuration:\n  - orphan.md'),
    ],
)
def test_what_leads_nowhere_or_has_no_place_fails_the_build(
    page: str, more: str, said: str, tmp_path: Path
) -> None:
    for name in ("docs", "hack"):
        (tmp_path / name).mkdir()
    shutil.copy(REPOSITORY / "mkdocs.yml", tmp_path)
    shutil.copy(REPOSITORY / "hack" / "site", tmp_path / "hack")
    shutil.copytree(REPOSITORY / "docs", tmp_path / "docs", dirs_exist_ok=True)
    (tmp_path / ".venv").symlink_to(REPOSITORY / ".venv")
    with (tmp_path / "docs" / page).open("a") as file:
        file.write(f"\n{more}\n")
    built = build(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    assert said in built.stderr
