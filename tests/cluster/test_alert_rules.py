"""Each alert of the chart fires and clears, by Prometheus' own test tool, and has its page section."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from helm import CHART, given, helm
from localcluster import find_binary

if TYPE_CHECKING:
    from collections.abc import Mapping

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "charts" / "lorafleet" / "alerts" / "lorafleet.yaml"
PAGE = REPOSITORY / "docs" / "alerts.md"
POD = 'namespace="ns",pod="e-0"'
POOL = 'name="pool",namespace="ns"'
ADAPTER = 'name="pirate",namespace="ns"'


@dataclass(frozen=True)
class Case:
    """Series by minute, the minutes at which the alert fires and is silent, and what it says."""

    series: Mapping[str, str]
    fires: int
    silent: tuple[int, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    value: str = ""


def on_pod(metric: str, **more: str) -> str:
    labels = [POD, *(f'{name}="{value}"' for name, value in more.items())]
    return f"{metric}{{{','.join(labels)}}}"


ENGINE = {"namespace": "ns", "pod": "e-0"}
CASES: dict[str, Case] = {
    "LorafleetAdapterNotReady": Case(
        {
            f'lorafleet_operator_adapter_condition{{{ADAPTER},type="Ready",status="True"}}': "1x5 0x30 1x60",
            f'lorafleet_operator_adapter_failing{{{ADAPTER},reason="TooLarge"}}': "_x5 1x30 _x60",
            # One that people have paused is no news.
            'lorafleet_operator_adapter_condition{name="p",namespace="ns",type="Ready",status="True"}': "0x90",
            'lorafleet_operator_adapter_failing{name="p",namespace="ns",reason="Paused"}': "1x90",
        },
        fires=25,
        silent=(18, 45),
        labels={"name": "pirate", "namespace": "ns", "type": "Ready", "status": "True"},
    ),
    "LorafleetRollback": Case(
        {'lorafleet_operator_rollbacks_total{reason="ErrorRate"}': "_x20 1x60"},
        fires=25,
        silent=(19, 40),
        labels={"reason": "ErrorRate"},
        value="1",
    ),
    "LorafleetEngineUnreachable": Case(
        {
            f'lorafleet_operator_engine_reachable{{engine="e-0",{POOL}}}': "1x5 0x10 1x20",
            f'lorafleet_operator_engine_reachable{{engine="e-1",{POOL}}}': "1x40",
        },
        fires=12,
        silent=(9, 20),
        labels={"engine": "e-0", "name": "pool", "namespace": "ns"},
    ),
    "LorafleetPluginInactive": Case(
        {
            on_pod("lorafleet_engine_health", state="stock"): "0x5 1x10 0x20",
            on_pod("lorafleet_engine_health", state="ready"): "1x5 0x10 1x20",
        },
        fires=12,
        silent=(9, 20),
        labels={**ENGINE, "state": "stock"},
    ),
    "LorafleetArenaNearlyFull": Case(
        {
            on_pod("lorafleet_sidecar_staging_in_use_bytes"): "50x5 80x20 50x30",
            on_pod("lorafleet_sidecar_staging_bytes", state="reserved"): "0x5 15x20 0x30",
            on_pod("lorafleet_sidecar_staging_bytes", state="used"): "100x60",
            on_pod("lorafleet_sidecar_staging_limit_bytes"): "100x60",
        },
        fires=20,
        silent=(10, 35),
        labels=ENGINE,
        value="95%",
    ),
    "LorafleetPinnedMemoryOverBudget": Case(
        {
            # Both ranks register one arena: it counts once.
            on_pod("lorafleet_engine_pinned_bytes", rank="0", kind="arena"): "1048576x60",
            on_pod("lorafleet_engine_pinned_bytes", rank="1", kind="arena"): "1048576x60",
            on_pod("lorafleet_engine_pinned_bytes", rank="0", kind="copy"): "0x5 524288x20 0x30",
            on_pod("lorafleet_engine_pinned_bytes", rank="1", kind="copy"): "0x5 524288x20 0x30",
            on_pod("lorafleet_engine_pinned_limit_bytes"): "1048576x60",
        },
        fires=20,
        silent=(10, 35),
        labels=ENGINE,
        value="2Mi",
    ),
    "LorafleetThrash": Case(
        {
            on_pod("lorafleet_engine_rebuilds_total", rank="0"): "0x10 0+60x30 1800x30",
            'lorafleet_engine_rebuilds_total{namespace="ns",pod="e-1",rank="0"}': "0+6x90",
        },
        fires=35,
        silent=(15, 60),
        labels=ENGINE,
        value="1.00",
    ),
    "LorafleetGuaranteeNotKept": Case(
        {on_pod("lorafleet_engine_displaced_adapters"): "0x5 2x10 0x20"},
        fires=12,
        silent=(9, 20),
        labels=ENGINE,
        value="2",
    ),
    "LorafleetRevisionQuarantined": Case(
        {on_pod("lorafleet_sidecar_quarantined_revisions"): "0x5 1x10 0x20"},
        fires=10,
        silent=(5, 20),
        labels=ENGINE,
        value="1",
    ),
    "LorafleetHostMemoryGrowth": Case(
        {
            # 2 MiB with each of 20 loads after the first 8; then vLLM starts again.
            on_pod(
                "lorafleet_engine_host_memory_private_bytes", rank="0"
            ): "0+2097152x28 58720256x30 0x30",
            on_pod("lorafleet_engine_host_memory_baseline_bytes", rank="0"): "0x8 16777216x50 0x30",
            on_pod("lorafleet_engine_loads_total", rank="0"): "0+1x28 28x30 0x30",
            on_pod("lorafleet_engine_baseline_loads", rank="0"): "0x8 8x50 0x30",
        },
        fires=50,
        silent=(20, 70),
        labels={**ENGINE, "rank": "0"},
        value="2Mi",
    ),
    "LorafleetRecycleStuck": Case(
        {
            f'lorafleet_operator_pool_engines{{{POOL},traffic="Recycling"}}': "0x5 1x40 0x20",
            f'lorafleet_operator_pool_engines{{{POOL},traffic="Warm"}}': "2x5 1x40 2x20",
        },
        fires=40,
        silent=(30, 50),
        labels={"name": "pool", "namespace": "ns", "traffic": "Recycling"},
    ),
    "LorafleetOperatorDown": Case(
        {'lorafleet_operator_shards{job="op",instance="a"}': "1x5 _x20 1x20"},
        fires=20,
        silent=(8, 30),
    ),
    "LorafleetNoLeader": Case(
        {
            'lorafleet_operator_shards{job="op",instance="a"}': "2x40",
            'lorafleet_operator_shards{job="op",instance="b"}': "2x40",
            'lorafleet_operator_shards_held{job="op",instance="a"}': "2x5 0x10 0x20",
            'lorafleet_operator_shards_held{job="op",instance="b"}': "0x5 1x10 2x20",
        },
        fires=12,
        silent=(4, 20),
        labels={"job": "op"},
        value="1",
    ),
    "LorafleetTransfersFail": Case(
        {
            'lorafleet_operator_transfer_results_total{outcome="TransferInterrupted"}': "0x5 0+1x30 30x30",
            'lorafleet_operator_transfer_results_total{outcome="ok"}': "0+1x90",
        },
        fires=30,
        silent=(15, 60),
        labels={"outcome": "TransferInterrupted"},
    ),
    "LorafleetAPIErrors": Case(
        {
            'lorafleet_operator_api_requests_total{verb="PATCH",code="403"}': "0x5 0+6x30 180x30",
            'lorafleet_operator_api_requests_total{verb="PUT",code="409"}': "0+6x90",
            'lorafleet_operator_api_requests_total{verb="GET",code="500"}': "0+6x90",
        },
        fires=30,
        silent=(10, 55),
        labels={"verb": "PATCH", "code": "403"},
        value="0.10",
    ),
    "LorafleetPassesLate": Case(
        {
            'lorafleet_operator_pass_wait_seconds_bucket{kind="LoRAAdapter",le="60"}': "0x90",
            'lorafleet_operator_pass_wait_seconds_bucket{kind="LoRAAdapter",le="300"}': "0x5 0+6x30 180x30",
            'lorafleet_operator_pass_wait_seconds_bucket{kind="LoRAAdapter",le="+Inf"}': "0x5 0+6x30 180x30",
        },
        fires=30,
        silent=(10, 55),
        labels={"kind": "LoRAAdapter"},
        value="4m 57s",
    ),
    "LorafleetCertificateExpires": Case(
        {
            # Ends an hour before seven days have passed; a new one comes after half an hour.
            'lorafleet_operator_certificate_expiry_timestamp_seconds{certificate="own",pod="op"}': "601200x30 9000000x30",
            'lorafleet_sidecar_certificate_expiry_timestamp_seconds{certificate="own",pod="e-0"}': "9000000x60",
        },
        fires=20,
        silent=(9, 40),
        labels={"certificate": "own", "pod": "op"},
        value="6d 22h 40m 0s",
    ),
    "LorafleetCertificateRefused": Case(
        {on_pod("lorafleet_sidecar_certificate_files_refused"): "0x5 1x20 0x20"},
        fires=20,
        silent=(10, 30),
        labels=ENGINE,
    ),
}


def rules() -> dict[str, dict[str, Any]]:
    """Return the rules of the chart by their name."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    found = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in found}) == len(found)
    return {rule["alert"]: rule for rule in found}


def said(text: str, case: Case) -> str:
    """Return the annotation as Prometheus fills it in."""
    text = re.sub(r"{{ \$labels\.(\w+) }}", lambda match: case.labels[match[1]], text)
    return re.sub(r"{{ \$value[^}]*}}", case.value, text)


def as_test(name: str, case: Case, rule: dict[str, Any]) -> dict[str, Any]:
    fired = {
        "exp_labels": {**case.labels, **rule["labels"]},
        "exp_annotations": {key: said(text, case) for key, text in rule["annotations"].items()},
    }
    checks = [{"eval_time": f"{case.fires}m", "alertname": name, "exp_alerts": [fired]}]
    checks += [{"eval_time": f"{at}m", "alertname": name, "exp_alerts": []} for at in case.silent]
    series = [{"series": key, "values": values} for key, values in case.series.items()]
    return {"interval": "1m", "input_series": series, "alert_rule_test": checks}


def promtool(*arguments: str | Path) -> str:
    ran = subprocess.run([find_binary("promtool"), *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_rules_are_well_formed() -> None:
    assert f"{len(CASES)} rules found" in promtool("check", "rules", RULES)


def test_each_alert_fires_and_clears_and_names_what_it_is_about(tmp_path: Path) -> None:
    found = rules()
    assert set(found) == set(CASES)
    tests = [as_test(name, case, found[name]) for name, case in CASES.items()]
    file = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(file))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "alerts.yaml")


def test_each_alert_of_the_chart_names_its_section_where_the_page_is_published() -> None:
    place = [
        "template",
        "lorafleet",
        CHART,
        "--api-versions",
        "monitoring.coreos.com/v1/PrometheusRule",
    ]
    place += given(("alerts.enabled=true", "injection.enabled=false", "tls.mode=none"))
    for more, wanted in ((), ""), (("alerts.runbookUrl=https://docs.example/alerts",), "https"):
        made = yaml.safe_load_all(helm(*place, *given(more)))
        specs = [each["spec"] for each in made if each["kind"] == "PrometheusRule"]
        found = {
            rule["alert"]: rule for spec in specs for g in spec["groups"] for rule in g["rules"]
        }
        kept = rules()
        for name in kept:
            if wanted:
                url = f"https://docs.example/alerts#{name.lower()}"
                kept[name]["annotations"]["runbook_url"] = url
        assert found == kept
    refused = subprocess.run(
        [find_binary("helm"), *place, *given(("alerts.runbookUrl=docs/alerts.md",))],
        capture_output=True,
        text=True,
    )
    assert refused.returncode
    assert "at '/alerts/runbookUrl': 'docs/alerts.md' does not match pattern" in refused.stderr


def test_each_alert_has_a_severity_and_a_section_that_says_what_to_do() -> None:
    sections = re.split(r"(?m)^## ", PAGE.read_text())[1:]
    titles = {section.splitlines()[0].strip(): section for section in sections}
    assert set(titles) == set(rules())
    for name, rule in rules().items():
        assert rule["labels"]["severity"] in ("warning", "critical")
        for part in ("Meaning", "Look at", "Do"):
            assert f"**{part}.**" in titles[name], f"{name} has no {part}"
