"""What is wrong with a command line is one line, at every program and each of its verbs."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lorafleet_operator import cli as operator
from lorafleet_operator.inspection import cli as inspection
from lorafleet_operator.kubectl import arguments as kubectl
from lorafleet_sidecar import cli as sidecar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

REPOSITORY = Path(__file__).resolve().parents[2]


def parsed(words: Sequence[str]) -> object:
    return kubectl.parser().parse_args(words)


PROGRAMS: dict[str, Callable[[Sequence[str]], object]] = {
    "lorafleet": inspection.main,
    "lorafleet-operator": operator.main,
    "lorafleet-sidecar": sidecar.main,
    "kubectl lora": parsed,
}
SIZE = "size . --base-model b"
WRONG = [
    ("lorafleet", "", "the following arguments are required: VERB"),
    ("lorafleet", "profile .", "the following arguments are required: --base-model"),
    ("lorafleet", f"{SIZE} --adapters 0", "argument --adapters: '0' is no whole number, 1 or more"),
    ("lorafleet", f"{SIZE} --history x", "argument --history: 'x' is no whole number, 0 or more"),
    ("lorafleet", f"{SIZE} --max-loras -1", "argument --max-loras: '-1' is no whole number, 1 or more"),
    ("lorafleet", "profile . --base-model b --flag fully_shared", "argument --flag: invalid choice: 'fully_shared' (choose from "
     "'enable_mixed_moe_lora_format', 'enable_moe_shared_loras', 'fully_sharded_loras', 'enable_tower_connector_lora')"),
    ("lorafleet", "push a d --address x:1 --step -1", "argument --step: '-1' is no whole number, 0 or more"),
    ("lorafleet-operator", "", "the following arguments are required: VERB"),
    ("lorafleet-operator", "plan", "the following arguments are required: -f"),
    ("lorafleet-sidecar", "profile -o xml", "argument -o/--output: invalid choice: 'xml' (choose from 'text', 'json')"),
    ("kubectl lora", "ls -o csv", "argument -o/--output: invalid choice: 'csv' (choose from 'text', 'json', 'yaml', 'name', 'wide')"),
    ("kubectl lora", "top --adapters many", "argument --adapters: 'many' is no whole number, 1 to 65535"),
    ("kubectl lora", "push sql d --step 1.5", "argument --step: '1.5' is no whole number, 0 or more"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "words", "line"), WRONG)
def test_wrong_arguments_are_one_line_and_status_2(
    program: str, words: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        PROGRAMS[program](words.split())
    assert ended.value.code == 2
    who = " ".join([program, *words.split()[:1]])
    assert capsys.readouterr().err == f"{who}: {line}; see {who} --help\n"


@pytest.mark.parametrize(
    ("start", "line"),
    [
        ("lorafleet", "lorafleet: numpy is missing: pip install 'lorafleet[operator]'"),
        ("operator", "lorafleet-operator: kopf is missing: pip install 'lorafleet[operator]'"),
        ("sidecar", "lorafleet-sidecar: httpx is missing: pip install 'lorafleet[sidecar]'"),
    ],
)
def test_a_program_whose_extra_is_not_installed_says_so(start: str, line: str) -> None:
    lacking = "import sys; sys.modules.update(dict.fromkeys(('numpy', 'kopf', 'httpx')));"
    code = f"{lacking} from lorafleet import programs; sys.argv[1:] = ['run']; programs.{start}()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, f"{line}\n")


def test_the_installed_programs_start_there() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    starts = [each for each in project["scripts"].values() if each.startswith("lorafleet.")]
    assert len(starts) == 3
    for module, _, name in (each.partition(":") for each in starts):
        assert callable(getattr(importlib.import_module(module), name))
