"""A Prometheus of one's own on loopback, for tests and pictures of the dashboards.

    prometheus = LocalPrometheus(stack, directory, rules=[path])
    prometheus.scrape("lorafleet", operator.metrics_url)
    prometheus.now("up")

Targets may come, move and go while it runs; it looks at all of them each second.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import yaml
from localcluster import find_binary
from processes import answers, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from localstack import LocalStack

SCRAPE_SECONDS = 1


@dataclass(frozen=True)
class Series:
    """One series of an answer: times in seconds and values, one of each for an instant."""

    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


class Prometheus:
    """Asks the Prometheus at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=30)

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def now(self, expression: str, at: float | None = None) -> list[Series]:
        """Return the series of an expression now, or at a time. Raises RuntimeError for a bad one."""
        moment = {} if at is None else {"time": str(at)}
        found = self._get("query", query=expression, **moment)["result"]
        return [Series(each["metric"], *_points([each["value"]])) for each in found]

    def over(self, expression: str, start: float, end: float, step: float = 1.0) -> list[Series]:
        """Return the series of an expression between two times, seconds since 1970."""
        span = {"start": str(start), "end": str(end), "step": str(step)}
        found = self._get("query_range", query=expression, **span)["result"]
        return [Series(each["metric"], *_points(each["values"])) for each in found]

    def label_values(self, selector: str, label: str) -> list[str]:
        """Return what a label is in the series of a selector."""
        return [str(value) for value in self._get(f"label/{label}/values", **{"match[]": selector})]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire."""
        found = self._get("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in found if each["state"] == "firing"}

    def _get(self, path: str, **query: str) -> Any:
        where = f"/api/v1/{path}"
        long = path.startswith("query")  # such an expression may be too long for a URL
        answer = self._http.post(where, data=query) if long else self._http.get(where, params=query)
        found = answer.json()
        if found["status"] != "success":
            raise RuntimeError(f"{found['error']}: {query}")
        return found["data"]


class LocalPrometheus(Prometheus):
    """Starts at once and ends with the stack; `rules` are files of alerts."""

    def __init__(self, stack: LocalStack, directory: Path, rules: Sequence[Path] = ()) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._targets = directory / "targets.json"
        self._known: dict[str, dict[str, Any]] = {}
        self._write()
        config = directory / "prometheus.yml"
        config.write_text(yaml.safe_dump(_config(self._targets, rules)))
        port = free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        process = stack.start(
            "prometheus",
            [
                *(find_binary("prometheus"), f"--config.file={config}"),
                *(f"--storage.tsdb.path={directory / 'data'}", "--log.level=warn"),
                f"--web.listen-address=127.0.0.1:{port}",
            ],
        )
        process.wait_until(lambda: answers(f"{self.url}/-/ready"), 60, "ready")

    def scrape(self, job: str, url: str, **labels: str) -> None:
        """Scrape `url` from now on, instead of what the job and its labels had before."""
        parts = urlsplit(url)
        place = {"job": job, "__metrics_path__": parts.path, **labels}
        key = json.dumps([job, *sorted(labels.items())])
        self._known[key] = {"targets": [parts.netloc], "labels": place}
        self._write()

    def _write(self) -> None:
        fresh = self._targets.with_suffix(".fresh")
        fresh.write_text(json.dumps([*self._known.values()]))
        fresh.rename(self._targets)


def _points(pairs: Sequence[Sequence[Any]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(float(at) for at, _ in pairs), tuple(float(value) for _, value in pairs)


def _config(targets: Path, rules: Sequence[Path]) -> dict[str, Any]:
    pace = f"{SCRAPE_SECONDS}s"
    return {
        "global": {"scrape_interval": pace, "scrape_timeout": pace, "evaluation_interval": pace},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {
                "job_name": "all",
                # As the chart's PodMonitor of the operator has it; the others have no such labels.
                "honor_labels": True,
                "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "1s"}],
            }
        ],
    }
