"""Rules about the repository itself that no other tool keeps."""

import re
import subprocess
from pathlib import Path

import metrics_page
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
LARGEST_FILE = 400
LARGEST_MEDIAN = 150


def tracked(pattern: str) -> list[Path]:
    """Files under version control that match, generated code left out."""
    listed = subprocess.run(
        ["git", "ls-files", "--", pattern],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")
    paths = [REPOSITORY / name for name in listed if name and "_pb2" not in name]
    return [path for path in paths if path.exists()]


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_operator_folder_never_hides_the_standard_module():
    assert not (REPOSITORY / "operator" / "__init__.py").exists()


def test_tests_are_no_packages():
    assert list((REPOSITORY / "tests").rglob("__init__.py")) == []


def test_test_modules_have_unique_names():
    names = [path.name for path in tracked("tests/**/test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_no_file_holds_the_whole_product():
    long = {
        str(path.relative_to(REPOSITORY)): lines(path)
        for path in tracked("*.py")
        if lines(path) > LARGEST_FILE
    }
    assert long == {}


def test_half_of_the_modules_are_short():
    sizes = sorted(
        lines(path)
        for folder in ("operator", "engine_sidecar", "protos")
        for path in tracked(f"{folder}/*.py")
        if lines(path) > 0
    )
    assert sizes[len(sizes) // 2] <= LARGEST_MEDIAN


def test_generated_grpc_code_is_current():
    checked = subprocess.run(
        [REPOSITORY / "hack" / "generate-protos", "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_generated_crds_are_current():
    command = [REPOSITORY / ".venv" / "bin" / "lorafleet-operator", "crds", "--check"]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_metric_is_documented():
    assert metrics_page.PAGE.read_text() == metrics_page.page(), "run hack/metrics_page.py"
    assert metrics_page.page().count("| `lorafleet_") >= 30


@pytest.mark.parametrize("path", tracked("requirements/*.txt"), ids=lambda path: path.name)
def test_pinned_requirements_name_no_registry(path):
    assert (
        re.findall(r"(?m)^.*(?:https?://|--(?:extra-)?index-url|--find-links).*$", path.read_text())
        == []
    )


def test_links_and_concepts_of_the_documents_exist():
    """Every link and every path in the first columns of README and docs names a file."""
    link = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
    missing = [
        f"{document.name}: {target}"
        for document in [REPOSITORY / "README.md", *tracked("docs/*.md")]
        for target in link.findall(document.read_text())
        if not (document.parent / target).exists()
    ]
    assert missing == []


def test_concept_table_names_existing_files():
    table = (REPOSITORY / "README.md").read_text().split("## Where things are", 1)[1]
    rows = [line for line in table.split("\n## ")[0].splitlines() if line.startswith("| ")]
    named = [name for row in rows for name in re.findall(r"`([\w./*-]+/[\w./*-]*)`", row)]
    assert len(named) >= 20
    assert [name for name in named if not list(REPOSITORY.glob(name))] == []
