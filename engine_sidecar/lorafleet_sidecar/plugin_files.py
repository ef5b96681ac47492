"""The plugin's files, for the Python path of a vLLM whose image knows nothing of them.

Only `lorafleet_vllm`, what it imports of `lorafleet` and the entry point go there: whatever else vLLM
imports (protobuf, gRPC, numpy) stays the one of its own image.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
from pathlib import Path

import lorafleet

_ENTRY_POINTS = "[vllm.general_plugins]\nlorafleet = lorafleet_vllm:register\n"
_OF_LORAFLEET = (
    "__init__.py",
    "errors.py",
    "fingerprint.py",
    "pinned_names.py",
    "profile.py",
    "py.typed",
)


def install_plugin(directory: Path) -> bool:
    """Make `directory` hold the plugin of this version and nothing else; False if it did already.

    A vLLM that starts meanwhile sees the old files or the new ones. Any user may read them.
    Raises OSError.
    """
    wanted = _files()
    if _content(directory) == wanted:
        return False
    fresh = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name, content in wanted.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    for folder in (fresh, *(path for path in fresh.rglob("*") if path.is_dir())):
        folder.chmod(0o755)  # whatever the umask
    # A vLLM that is root may have left files there that nobody else can remove.
    stale = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}")
    if directory.exists():
        directory.rename(stale)
    fresh.rename(directory)
    shutil.rmtree(stale, ignore_errors=True)
    return True


def _files() -> dict[str, bytes]:
    """Return the content of each file, by its path below the directory."""
    described = f"lorafleet-{lorafleet.__version__}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: lorafleet\nVersion: {lorafleet.__version__}\n"
    files = {
        f"{described}/METADATA": metadata.encode(),
        f"{described}/entry_points.txt": _ENTRY_POINTS.encode(),
    }
    for name in _OF_LORAFLEET:
        files[f"lorafleet/{name}"] = (_folder("lorafleet") / name).read_bytes()
    for name, content in _content(_folder("lorafleet_vllm")).items():
        files[f"lorafleet_vllm/{name}"] = content
    return files


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


def _content(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
