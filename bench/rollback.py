"""Roll a large adapter back: how many bytes move, and how long until it is Ready again.

    python bench/rollback.py [--gib 2]

The real operator and sidecar, the source on a volume; the engine is a stand-in that checks no shapes.
The adapter is brought, gets other content, and is rolled back twice: by `spec.revision`, and by a
source that holds the first content again. Prints for each step the bytes read of the source, sent by
the operator and taken by the sidecar, and the time to Ready. Exits 1 when a rollback moved tensor bytes.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "hack"), str(ROOT / "bench")]

import httpx
from chain import make_large
from kubernetes import config, utils
from localcluster import LocalCluster
from operator_chain import BASE, GROUP, Chain
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually

ENGINE = "engine-0"


@dataclass(frozen=True)
class Bytes:
    """What moved, in bytes."""

    read: float
    sent: float
    taken: float

    @classmethod
    def now(cls, chain: Chain) -> Bytes:
        assert chain.operator is not None
        operator, sidecar = chain.operator.metrics_url, chain.sidecars[ENGINE].metrics_url
        return cls(
            _metric(operator, "lorafleet_operator_source_read_bytes_total"),
            _metric(operator, "lorafleet_operator_transfer_bytes_total"),
            _metric(sidecar, "lorafleet_sidecar_received_bytes_total"),
        )

    def since(self, before: Bytes) -> Bytes:
        return Bytes(*(a - b for a, b in zip(astuple(self), astuple(before), strict=True)))


def _metric(url: str, name: str) -> float:
    families = text_string_to_metric_families(httpx.get(url, timeout=10).text)
    return sum(sample.value for each in families for sample in each.samples if sample.name == name)


class Story:
    """One large adapter and what is done to it."""

    def __init__(self, chain: Chain, size: int) -> None:
        self._chain, self._size = chain, size

    def write(self, name: str, mark: bytes) -> None:
        """Put content on the volume: zeros that end with `mark`."""
        folder = self._chain.root / self._chain.namespace / "claim" / name
        make_large(folder, self._size)
        with (folder / "adapter_model.safetensors").open("r+b") as file:
            file.seek(-len(mark), 2)
            file.write(mark)

    def apply(self) -> None:
        spec = {
            "baseModel": BASE,
            "poolRef": {"name": "pool"},
            "source": {**self._source("first"), "pollIntervalSeconds": 0},
            "allowBaseMismatch": True,
            "drainTimeoutSeconds": 1,
        }
        self._chain._create("loraadapters", "LoRAAdapter", "large", spec)

    def point(self, name: str) -> None:
        self.patch({"source": self._source(name), "revision": None})

    def patch(self, spec: dict[str, Any]) -> None:
        self._chain.custom.patch_namespaced_custom_object(
            *GROUP, self._chain.namespace, "loraadapters", "large", {"spec": spec}
        )

    def digest(self) -> str:
        """Return the revision that the engine serves, empty while the adapter is not Ready."""
        status = self._chain.status("large")
        served = {each["digest"] for each in status.get("engines", []) if each["published"]}
        ready = self._chain.condition("large", "Ready")[0] == "True"
        return served.pop() if ready and len(served) == 1 else ""

    def _source(self, name: str) -> dict[str, Any]:
        return {"persistentVolumeClaim": {"claimName": "claim", "path": name}}


def step(chain: Chain, story: Story, what: str, act: Any, other_than: str) -> tuple[str, Bytes]:
    before, began = Bytes.now(chain), time.monotonic()
    act()
    eventually(lambda: story.digest() not in ("", other_than), 600, what)
    took = time.monotonic() - began
    time.sleep(1.5)  # what comes late counts too
    moved = Bytes.now(chain).since(before)
    print(
        f"{what}: {took:.2f} s to Ready; source read {moved.read:.0f}, operator sent "
        f"{moved.sent:.0f}, sidecar took {moved.taken:.0f} bytes",
        flush=True,
    )
    return story.digest(), moved


def run(chain: Chain, gib: float) -> bool:
    """Print the steps; return whether both rollbacks moved no tensor byte."""
    story = Story(chain, int(gib * (1 << 30)))
    story.write("first", b"first!")
    story.write("second", b"second")
    first, brought = step(chain, story, "first revision", story.apply, "")
    second, _ = step(chain, story, "update", lambda: story.point("second"), first)
    _, named = step(
        chain, story, "rollback by spec.revision", lambda: story.patch({"revision": first}), second
    )
    step(chain, story, "and forward again", lambda: story.patch({"revision": None}), first)
    _, back = step(chain, story, "rollback by the source", lambda: story.point("first"), second)
    for moved in (named, back):
        share = (moved.sent + moved.taken) / brought.sent
        print(f"moved {share:.3f} of what the adapter has")
    return not (named.sent + named.taken + back.sent + back.taken)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lorafleet-bench-") as name:
        directory = Path(name)
        with LocalCluster(directory / "cluster", quiet=True) as cluster:
            api = config.new_client_from_config(str(cluster.kubeconfig))
            for path in sorted((ROOT / "crds").glob("*.yaml")):
                utils.create_from_yaml(api, str(path))
            chain = Chain(cluster.kubeconfig, directory / "chain", f"b-{secrets.token_hex(3)}")
            try:
                chain.arena_bytes = int((2 * options.gib + 0.25) * (1 << 30))
                chain.start_engine(ENGINE, 0)
                chain.start_operator()
                chain.pool()
                return 0 if run(chain, options.gib) else 1
            finally:
                chain.stop()


if __name__ == "__main__":
    sys.exit(main())
