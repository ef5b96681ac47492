"""Walk the page, or make one of the things that it needs."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from imaging.buildah import BuildFailed
from kubelets import cluster
from kubelets.binaries import NodesFailed
from kubelets.layout import DIRECTORY
from processes import ProcessFailed

from walking import machine
from walking.checks import Checks, kubectl
from walking.page import PAGE, steps
from walking.shell import Shell, StepFailed


def walk() -> None:
    """All steps. Raises StepFailed with the step's title; the cluster is taken down in any case."""
    if reason := cluster.refusal():
        raise NodesFailed(reason)
    began = time.monotonic()
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="lorafleet-walk-") as folder:
        shell = Shell(Path(folder))
        try:
            for step in steps(PAGE.read_text()):
                print(f"\n== {step.title} ({time.monotonic() - began:.0f} s)", flush=True)
                try:
                    if step.title == "Upgrade":
                        checks.before_upgrade()
                    for found in checks.of[step.title](shell.run(step.commands)):
                        print(f"  ok: {found}", flush=True)
                except (StepFailed, LookupError, ValueError) as failure:
                    tell_state()
                    told = str(failure) if isinstance(failure, StepFailed) else repr(failure)
                    raise StepFailed(f"{step.title}: {told}") from failure
        finally:
            cluster.down(keep_logs=True)
    print(f"\nthe walk took {time.monotonic() - began:.0f} s")


def tell_state() -> None:
    """What somebody would look at first: a machine that runs it for others keeps no files."""
    looks = [
        ("get", "pods,lora,lpool", "-A", "-o", "wide"),
        ("get", "events", "-A", "--sort-by=.lastTimestamp"),
        ("logs", "-n", "lorafleet-system", "deploy/lorafleet", "--tail=20"),
        ("logs", "-n", "demo", "-l", "app=smollm2", "-c", "lorafleet-sidecar", "--tail=10"),
        ("logs", "-n", "demo", "-l", "app=smollm2", "-c", "vllm", "--tail=15"),
    ]
    for look in looks:
        try:
            said = kubectl("--request-timeout=10s", *look)
        except StepFailed as failure:
            said = str(failure)
        print(
            f"-- kubectl {' '.join(look)}\n" + "\n".join(said.splitlines()[-40:]), file=sys.stderr
        )
    for log in sorted((DIRECTORY / "logs").glob("n?.log")):
        tail = subprocess.run(["tail", "-n", "5", log], capture_output=True, text=True).stdout
        print(f"-- {log.name}\n{tail}", file=sys.stderr)


def main() -> int:
    """Do it; what fails is one line at the end."""
    parser = argparse.ArgumentParser(
        prog="hack/walk", description="the walk of docs/walkthrough.md"
    )
    parser.add_argument("verb", nargs="?", choices=["all", "model", "bucket"], default="all")
    verbs = {"all": walk, "model": machine.make_model, "bucket": machine.start_bucket}
    try:
        verbs[parser.parse_args().verb]()
    except (BuildFailed, NodesFailed, ProcessFailed, StepFailed) as failure:
        print(f"walk: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
