"""Trainings of two processes: what the main one sends is what one process alone would have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from lorafleet.push.fleet import content_of
from peft_trainers import file_of, peft_model, sha
from processes import free_port
from push_processes import CONFIG

TESTS = Path(__file__).parents[2]


def test_the_main_process_sends_the_whole_adapter_and_the_others_nothing() -> None:
    alone = content_of(peft_model(dtype=torch.float32, **CONFIG), None, "default")
    assert alone is not None
    wanted = sha(file_of(alone))
    port = str(free_port())
    command = [sys.executable, str(TESTS / "push_processes.py"), port]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, cwd=TESTS, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0].split("\n") for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    found = [dict(line.split() for line in lines if line) for lines in said]
    assert found[0] == dict.fromkeys(("ddp", "fsdp", "fsdp2"), wanted)
    assert found[1] == dict.fromkeys(("ddp", "fsdp", "fsdp2"), "nothing")
