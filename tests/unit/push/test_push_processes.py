"""Trainings of two processes: what the main one sends is what one process alone would have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from processes import free_port
from push_processes import WRAPPERS, new_model, sent

TESTS = Path(__file__).parents[2]
WRAPPED = {*(wrap.__name__ for wrap in WRAPPERS), "zero3"}


def test_the_main_process_sends_the_whole_adapter_and_the_others_nothing() -> None:
    command = [sys.executable, str(TESTS / "push_processes.py"), str(free_port())]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, cwd=TESTS, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    lines = [[line.split()[1:] for line in each if line.startswith("sends ")] for each in said]
    main, other = ({name: tuple(hashes) for name, *hashes in each} for each in lines)
    before, after = main.pop("alone")
    assert before == sent(new_model())
    assert after != before
    assert main == dict.fromkeys(WRAPPED, (before, after))
    assert other == dict.fromkeys({"alone", *WRAPPED}, ("nothing", "nothing"))
