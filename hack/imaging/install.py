"""Runs in the build, `install.py CONTEXT TARGET`: the wheels of CONTEXT into TARGET, without a network.

Only the standard library is there. What packages bring for their own tests is left out, and the
modules are compiled: a root that cannot be written keeps nothing for the next start. The compiled
files do not depend on times, so that an image does not either.
"""

import compileall
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

TESTS = ("tests", "test", "e2e_test")


def main(context: Path, target: Path) -> None:
    """Install, take out, compile."""
    install = [str(context / "uv"), "pip", "install", "--no-index", "--offline", "--no-deps"]
    install += ["--no-cache", "--find-links", str(context / "wheels")]
    install += ["--python", sys.executable, "--target", str(target)]
    subprocess.run([*install, "-r", str(context / "requirements.txt")], check=True)
    for folder in sorted(target.rglob("*")):
        if folder.is_dir() and folder.name in TESTS:
            shutil.rmtree(folder)
    for lock in target.glob(".lock"):
        lock.unlink()
    # The installer's note of when it saw a wheel: with it no two builds would be the same.
    for note in target.glob("*.dist-info/uv_cache.json"):
        note.unlink()
        listed = note.with_name("RECORD")
        lines = listed.read_text().splitlines(keepends=True)
        listed.write_text("".join(line for line in lines if f"/{note.name}," not in line))
    compileall.compile_dir(
        target, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
