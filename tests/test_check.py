"""hack/check in CI: a race that a test lost once refuses no landing and is named; all else refuses it."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from waiting import eventually

REPOSITORY = Path(__file__).resolve().parent.parent
RACE = """
from pathlib import Path

def test_race(tmp_path):
    (tmp_path / "server.log").write_text("what the server said")
    marker = Path(__file__).with_suffix(".lost")
    lost = not marker.exists()
    marker.touch()
    assert not lost
"""
BROKEN = "def test_broken():\n    assert False\n"
SOUND = "def test_sound():\n    pass\n"
LONG = "def test_long():\n    assert [bytes(8 << 20)] == [b'x' * (8 << 20)]\n"
UNREADABLE = "import nothing_of_this_name\n"


LASTS = """
import subprocess, sys, time
from pathlib import Path

import pytest

@pytest.fixture
def server():
    server = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(__file__).with_name("pid").write_text(f"{server.pid} ")
    yield
    server.kill()
    server.wait()

def test_lasts(server):
    time.sleep(600)
"""


def checked(
    root: Path, tests: dict[str, str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run `hack/check contract` in a clone that has these tests alone."""
    command, kept = clone(root, tests)
    return subprocess.run(command, env=kept | environment, capture_output=True, text=True)


def clone(root: Path, tests: dict[str, str]) -> tuple[list[Path | str], dict[str, str]]:
    """Make a clone that has these tests alone; return how to check it, and the environment."""
    contract = root / "tests" / "contract"
    contract.mkdir(parents=True)
    (root / "hack").mkdir()
    shutil.copy(REPOSITORY / "hack" / "check", root / "hack" / "check")
    for name in ("pyproject.toml", "tests/conftest.py"):
        shutil.copy(REPOSITORY / name, root / name)
    (root / ".venv").symlink_to(REPOSITORY / ".venv")
    for name, text in tests.items():
        (contract / f"test_{name}.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    return [root / "hack" / "check", "contract"], kept


def test_a_race_lost_once_goes_on_and_is_named(tmp_path: Path) -> None:
    ended = checked(tmp_path, {"a": RACE, "b": SOUND}, {"CI": "true"})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "end of server.log" in ended.stdout, "what a lost race left to read is shown"
    assert ended.stdout.endswith(
        "FLAKY: tests/contract/test_a.py::test_race failed once and passed alone: repair them\n"
    )


def test_a_race_refuses_everywhere_else(tmp_path: Path) -> None:
    ended = checked(tmp_path, {"a": RACE, "b": SOUND}, {})
    assert ended.returncode == 1
    assert "FLAKY" not in ended.stdout
    assert "FAILED: suite contract" in ended.stderr
    assert "stopping after 1 failures" in ended.stdout


def test_what_fails_again_refuses_and_the_first_run_shows_every_failure(tmp_path: Path) -> None:
    ended = checked(tmp_path, {"a": BROKEN, "b": RACE, "c": SOUND}, {"CI": "true"})
    assert ended.returncode == 1
    assert "2 failed, 1 passed" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout, "those two alone"
    assert "FAILED: suite contract" in ended.stderr
    assert "FLAKY" not in ended.stdout


def test_what_differs_is_told_in_a_few_lines(tmp_path: Path) -> None:
    ended = checked(tmp_path, {"a": LONG}, {"CI": "true"})
    assert ended.returncode == 1
    assert "At index 0 diff" in ended.stdout
    assert len(ended.stdout) < 20_000


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ({str(number): RACE for number in range(4)}, "4 failed"),
        ({"a": UNREADABLE, "b": SOUND}, "1 error"),
    ],
    ids=["more than a few", "no tests at all"],
)
def test_what_is_no_race_is_not_tried_again(
    tmp_path: Path, tests: dict[str, str], said: str
) -> None:
    ended = checked(tmp_path, tests, {"CI": "true"})
    assert ended.returncode == 1
    assert said in ended.stdout
    assert "once more" not in ended.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_that_is_ended_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    command, kept = clone(tmp_path, {"a": LASTS})
    ended = interrupted(tmp_path, command, kept, number)
    assert ended.returncode == 1
    assert ended.stderr.endswith(f"FAILED: ended by {number.name}\n"), ended.stdout + ended.stderr


def test_pytest_alone_that_is_ended_leaves_nothing_running(tmp_path: Path) -> None:
    _, kept = clone(tmp_path, {"a": LASTS})
    command: list[Path | str] = [tmp_path / ".venv/bin/python", "-m", "pytest", "tests/contract"]
    ended = interrupted(tmp_path, command, kept, signal.SIGTERM)
    assert ended.returncode == pytest.ExitCode.INTERRUPTED, ended.stdout + ended.stderr


def interrupted(
    root: Path, command: list[Path | str], environment: dict[str, str], number: signal.Signals
) -> subprocess.CompletedProcess[str]:
    """Run a check of LASTS that gets a signal while its server runs; that is gone afterwards."""
    checking = subprocess.Popen(
        [
            "env",
            "--default-signal",
            *command,
        ],  # under nohup some are ignored, and a shell has to, too
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    told = root / "tests" / "contract" / "pid"
    eventually(lambda: told.exists() and told.read_text().endswith(" "))
    if number is signal.SIGINT:
        os.killpg(checking.pid, number)  # as a terminal does
    else:
        checking.send_signal(number)
    out, err = checking.communicate(timeout=60)
    assert not psutil.pid_exists(int(told.read_text()))
    return subprocess.CompletedProcess(command, checking.returncode, out, err)
