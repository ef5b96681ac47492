"""Pictures of the dashboards: `hack/dashboards/render` from a run of the demo, or from any Prometheus.

    hack/dashboards/render                              docs/dashboard-*.png, from a run of the demo
    hack/dashboards/render --url http://host:9090 --minutes 60 --out DIR

What is drawn is what Prometheus answers to the panels' own queries. Needs matplotlib
(requirements/docs.txt); the first form also what `make demo` needs.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from localprometheus import LocalPrometheus, Prometheus
from localstack import LocalStack

from dashboards.drawing import draw
from dashboards.engine_memory import ENGINE_MEMORY
from dashboards.fleet import FLEET

if TYPE_CHECKING:
    from demo.fleet import Fleet

REPOSITORY = Path(__file__).resolve().parents[2]
RUN = REPOSITORY / ".cache" / "demo" / "pictures"


def pictures(prometheus: Prometheus, start: float, end: float, folder: Path) -> None:
    """Draw both dashboards."""
    for board in (FLEET, ENGINE_MEMORY):
        path = folder / f"dashboard-{board.uid.removeprefix('lorafleet-')}.png"
        draw(board, prometheus, start, end, path)
        print(path)


def of_the_demo(folder: Path) -> None:
    """Run the demo's story beside a Prometheus and draw what that has seen."""
    from demo.fleet import start
    from demo.story import Story

    shutil.rmtree(RUN, ignore_errors=True)
    with LocalStack(RUN) as stack, start(stack) as fleet:
        prometheus = _beside(stack, fleet)
        began = time.time()
        Story(fleet).tell()
        time.sleep(3)  # the last moments are scraped
        pictures(prometheus, began, time.time(), folder)
        prometheus.close()


def _beside(stack: LocalStack, fleet: Fleet) -> LocalPrometheus:
    prometheus = LocalPrometheus(stack, RUN / "prometheus")
    pod = {"namespace": "demo", "pod": fleet.engine.spec.name}
    prometheus.scrape("lorafleet", fleet.operator.metrics_url)
    prometheus.scrape("engines", fleet.sidecar.metrics_url, **pod)
    prometheus.scrape("vllm", f"{fleet.engine.url}/metrics", **pod)
    while len(prometheus.now("up == 1")) < 3:
        time.sleep(0.5)
    return prometheus


def main() -> None:
    """Draw from the Prometheus that is named, else run the demo."""
    parser = argparse.ArgumentParser(description="pictures of the dashboards")
    parser.add_argument("--url", help="a Prometheus that scrapes a fleet")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "docs")
    arguments = parser.parse_args()
    if arguments.url is None:
        of_the_demo(arguments.out)
        return
    prometheus = Prometheus(arguments.url)
    now = time.time()
    pictures(prometheus, now - 60 * arguments.minutes, now, arguments.out)
    prometheus.close()


if __name__ == "__main__":
    main()
