"""The plugin starts fast, because of what it does not import, and works without any extra."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from lorafleet_operator.kubectl import arguments

VERBS = ("ls", "top", "history", "rollback", "lookup", "tunnel", "complete", "cli")
CODE = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(f"lorafleet_operator.kubectl.{name}")
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_all_verbs_but_why_and_push_need_nothing_but_the_standard_library() -> None:
    run = subprocess.run(
        [sys.executable, "-c", CODE, *VERBS], capture_output=True, text=True, check=True
    )
    ours = {"lorafleet_operator", "lorafleet"}
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


@pytest.mark.parametrize(
    ("given", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("1h", 3600), ("0.2", 0.2)]
)
def test_times_are_given_as_kubectl_takes_them(given: str, seconds: float) -> None:
    options = arguments.parser().parse_args(["rollback", "sql", "--timeout", given])
    assert options.timeout == seconds


@pytest.mark.parametrize("given", ["", "0", "-1s", "m", "nan", "inf", "1d", "five"])
def test_what_is_no_time_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.parser().parse_args(["top", f"--interval={given}"])
    assert ended.value.code == 2
    assert "is no time above 0, such as 90s or 5m" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["-n", "a", "ls"], ["ls", "-n", "a"], ["-n", "b", "ls", "--namespace=a"]]
)
def test_flags_of_the_cluster_stand_before_or_behind_the_verb(words: list[str]) -> None:
    options = arguments.parser().parse_args([*words, "--as-group", "g", "--as-group=h", "-s", "u"])
    assert options.namespace == "a"
    assert arguments.cluster_flags(options) == ["--server=u", "--as-group=g", "--as-group=h"]
