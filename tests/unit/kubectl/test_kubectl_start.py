"""The plugin starts fast, because of what it does not import, and works without any extra."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

VERBS = ("ls", "top", "history", "rollback", "lookup", "complete", "cli")
CODE = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(f"lorafleet_operator.kubectl.{name}")
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_all_verbs_but_why_need_nothing_but_the_standard_library() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE, *VERBS], capture_output=True, text=True, check=True
    )
    ours = {"lorafleet_operator"}
    # What the environment itself brings in before any of our code.
    bare = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    added = set(json.loads(run.stdout)) - set(json.loads(bare.stdout)) - ours
    assert added <= sys.stdlib_module_names
    assert "asyncio" not in added


@pytest.mark.parametrize("verb", ["why", "ls"])
def test_what_needs_the_extra_says_so_without_it(verb: str) -> None:
    code = (
        "import sys\n"
        "sys.modules['yaml'] = sys.modules['pydantic'] = None\n"
        "from lorafleet_operator.kubectl import cli\n"
        "sys.exit(cli.main(sys.argv[1:]))"
    )
    given = {"why": ["why", "sql"], "ls": ["--version"]}[verb]
    run = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True)
    if verb == "why":
        assert run.returncode == 1
        assert run.stderr.startswith("kubectl lora: ")
        assert run.stderr.endswith(" is missing: pip install 'lorafleet[operator]'\n")
    else:
        assert run.stdout.startswith("kubectl lora ")
