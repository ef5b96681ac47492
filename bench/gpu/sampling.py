"""What push.py wants to know of a fleet a few times a second, as JSON lines on standard output.

    python bench/gpu/sampling.py KUBECONFIG NAMESPACE/NAME METRICS-URL..

A process of its own: in the trainer's, each look would take Python's lock from what is measured. Ends
when it is told to.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
SITE = os.environ.get("LORAFLEET_BENCH_SITE")
sys.path[1:1] = [str(ROOT / "tests"), *([SITE] if SITE else [])]

import httpx
from kube_rest import KubeRest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PERIOD = 0.2
WATCHED = {
    *("lorafleet_operator_pushed_bytes_total", "lorafleet_operator_transfer_bytes_total"),
    *("lorafleet_operator_transfers_in_progress", "lorafleet_operator_passes_running"),
    *("lorafleet_sidecar_received_bytes_total", "lorafleet_sidecar_staged_revisions"),
    *("lorafleet_sidecar_staging_bytes", "lorafleet_sidecar_engine_request_seconds_total"),
    *("lorafleet_engine_loads_total", "lorafleet_engine_phase_seconds_total"),
}
"""Metrics whose changes say where a push is."""


class Fleet:
    """Metrics of operator and sidecar, and the conditions of one adapter."""

    def __init__(self, kubeconfig: Path, key: str, urls: Sequence[str]) -> None:
        namespace, name = key.split("/")
        self._path = f"/apis/lorafleet.dev/v1alpha1/namespaces/{namespace}/loraadapters/{name}"
        self._kube, self._urls = KubeRest(kubeconfig), urls
        self._http = httpx.Client(timeout=5)

    def look(self) -> dict[str, Any]:
        """Return their values, by name."""
        found: dict[str, Any] = {}
        for url in self._urls:
            found |= chosen(self._http.get(url).text, WATCHED)
        answer = self._kube.client.get(self._path)
        status = answer.json().get("status", {}) if answer.is_success else {}
        for each in status.get("conditions", []):
            found[f"condition {each['type']}"] = f"{each['status']} {each['reason']}"
        return found


def chosen(text: str, names: Iterable[str]) -> dict[str, float]:
    """Return the samples of the metrics `names` in Prometheus's text, by name and labels."""
    found = {}
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] in names:
            found[sample] = float(value)
    return found


def main() -> None:
    fleet = Fleet(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
    while True:
        at = time.monotonic()
        try:
            found = fleet.look()
        except Exception as error:  # somebody is restarting or busy: the next look may succeed
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps([at, found]), flush=True)
        time.sleep(PERIOD)


if __name__ == "__main__":
    main()
