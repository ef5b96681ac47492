"""The processes that demo and tests start: one line when they fail, nothing left when they end."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import LocalProcess, ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"])
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[LocalProcess]:
    """A process with a child that ignores SIGTERM."""
    process = LocalProcess.start("parent", [sys.executable, "-c", PARENT], tmp_path / "parent.log")
    yield process
    process.stop()


def gone(pid: int) -> bool:
    """Whether nothing runs under `pid`; a zombie that nobody reaped runs no more."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


def eventually_gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return gone(pid)


@pytest.mark.parametrize("end", [LocalProcess.stop, LocalProcess.kill], ids=["stop", "kill"])
def test_children_end_with_their_parent(parent, end):
    parent.wait_until(lambda: {"ready", "child"} <= {*parent.log.read_text().split()}, 60)
    child = int(parent.log.read_text().split("child ")[1].split()[0])
    assert not gone(child)
    end(parent)
    assert not parent.running
    assert eventually_gone(child)


def test_a_second_stop_does_nothing(parent):
    parent.stop()
    parent.stop()
    assert not parent.running


def test_failure_tells_status_last_line_and_log(tmp_path):
    log = tmp_path / "broken.log"
    code = "print('all is well'); print(); raise SystemExit('no such model: x')"
    process = LocalProcess.start("broken", [sys.executable, "-c", code], log)
    with pytest.raises(ProcessFailed) as failed:
        process.wait_until(lambda: False, 60)
    assert str(failed.value) == f"broken ended with 1: no such model: x (log: {log})"


def test_what_a_process_did_last_counts(tmp_path):
    """A process that makes its result and ends is a success, however the looks fall."""
    result = tmp_path / "result"
    command = [sys.executable, "-c", f"open({str(result)!r}, 'w').close()"]
    process = LocalProcess.start("worker", command, tmp_path / "worker.log")
    process.popen.wait()
    process.wait_until(result.exists, 60)


def test_time_out_names_what_was_wanted(parent):
    with pytest.raises(ProcessFailed, match=r"^parent is not serving after 0 s: .*parent\.log\)$"):
        parent.wait_until(lambda: False, 0, "serving")


def test_environment_is_added_to_ours(tmp_path):
    log = tmp_path / "env.log"
    code = "import os; print(os.environ['PATH'] + '|' + os.environ['LORAFLEET_TEST'])"
    process = LocalProcess.start("env", [sys.executable, "-c", code], log, {"LORAFLEET_TEST": "x"})
    process.wait()
    assert log.read_text() == f"{os.environ['PATH']}|x\n"
