"""What the sidecar puts on vLLM's Python path: the plugin, and nothing that vLLM has itself."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import lorafleet
from lorafleet_sidecar.plugin_files import install_plugin

if TYPE_CHECKING:
    from pathlib import Path

_LOOK = """
import importlib, importlib.metadata, pkgutil, sys
import lorafleet, lorafleet_vllm
for each in pkgutil.walk_packages(lorafleet.__path__, "lorafleet."):
    importlib.import_module(each.name)
[entry] = importlib.metadata.entry_points(group="vllm.general_plugins")
entry.load()()
print(lorafleet.__file__, lorafleet_vllm.__file__, entry.dist.version)
print([name for name in sys.modules if name.partition(".")[0] in ("google", "grpc", "numpy")])
"""


def test_python_finds_the_plugin_and_its_entry_point_there_and_needs_nothing_else(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "plugin"
    assert install_plugin(directory)
    # -S: no site-packages, so that nothing is found but the standard library and the path.
    looked = subprocess.run(
        [sys.executable, "-S", "-c", _LOOK],
        env={"PYTHONPATH": str(directory)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    where, foreign = looked.stdout.splitlines()
    assert where.split() == [
        str(directory / "lorafleet" / "__init__.py"),
        str(directory / "lorafleet_vllm" / "__init__.py"),
        lorafleet.__version__,
    ]
    assert foreign == "[]"


def test_all_that_the_plugin_imports_of_lorafleet_is_there(tmp_path: Path) -> None:
    directory = tmp_path / "plugin"
    install_plugin(directory)
    imported = set()
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{each.name}" for each in node.names]
                imported |= {node.module, *names} if node.module == "lorafleet" else {node.module}
            elif isinstance(node, ast.Import):
                imported |= {each.name for each in node.names}
    ours = {name for name in imported if name.startswith("lorafleet.")}
    assert "lorafleet.profile" in ours
    assert [n for n in ours if not (directory / f"{n.replace('.', '/')}.py").is_file()] == []


def test_nothing_there_could_hide_a_package_of_the_image(tmp_path: Path) -> None:
    install_plugin(tmp_path / "plugin")
    assert sorted(path.name for path in (tmp_path / "plugin").iterdir()) == [
        "lorafleet",
        f"lorafleet-{lorafleet.__version__}.dist-info",
        "lorafleet_vllm",
    ]


def test_anybody_may_read_the_files_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        install_plugin(tmp_path / "plugin")
    finally:
        os.umask(before)
    for path in (tmp_path / "plugin", *(tmp_path / "plugin").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_another_version_is_replaced_and_the_same_one_is_left_alone(tmp_path: Path) -> None:
    directory = tmp_path / "plugin"
    install_plugin(directory)
    changed = directory / "lorafleet_vllm" / "settings.py"
    inode = changed.stat().st_ino
    (directory / "lorafleet_vllm" / "__pycache__").mkdir()  # vLLM may write there
    assert not install_plugin(directory)
    assert changed.stat().st_ino == inode
    wanted = changed.read_bytes()
    changed.write_text("of an earlier version")
    (directory / "lorafleet_vllm" / "gone.py").touch()
    assert install_plugin(directory)
    assert changed.read_bytes() == wanted
    assert not (directory / "lorafleet_vllm" / "gone.py").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["plugin"]
