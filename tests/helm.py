"""The real Helm, and the chart rendered by it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from localcluster import find_binary

if TYPE_CHECKING:
    from collections.abc import Sequence

CHART = Path(__file__).resolve().parents[1] / "charts" / "lorafleet"


class HelmFailed(AssertionError):
    """Helm's refusal, as it was printed."""


def helm(*arguments: str | Path, kubeconfig: Path | None = None) -> str:
    """Run Helm and return what it prints. Without a kubeconfig there is no cluster for it."""
    command = [find_binary("helm"), *arguments]
    env = {"KUBECONFIG": str(kubeconfig or "/nowhere"), "HOME": "/"}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240)
    if ended.returncode:
        raise HelmFailed(ended.stderr.strip() or ended.stdout.strip())
    return ended.stdout


def given(values: Sequence[str]) -> list[str]:
    """Return the arguments of Helm for values as `tls.mode=none`, those of JSON as `volumes:=[...]`."""
    arguments = []
    for value in values:
        flag, text = (
            ("--set-json", value.replace(":=", "=", 1)) if ":=" in value else ("--set", value)
        )
        arguments += [flag, text]
    return arguments


def rendered(
    *values: str, release: str = "lorafleet", namespace: str = "system", apis: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the documents of the chart without a cluster, hooks among them."""
    apis = [part for api in apis for part in ("--api-versions", api)]
    text = helm("template", release, CHART, "-n", namespace, *given(values), *apis)
    return [each for each in yaml.safe_load_all(text) if each]
