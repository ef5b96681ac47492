"""Every panel and the alerts on a real Prometheus that scrapes the real operator, sidecar and vLLM."""

from __future__ import annotations

import math
import re
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dashboards.asked import choices, filled_in
from dashboards.engine_memory import ENGINE_MEMORY
from dashboards.fleet import FLEET
from kube_rest import KubeRest
from kubernetes import client
from localprometheus import LocalPrometheus
from lorafleet.errors import AccessDenied
from lorafleet.push import Fleet
from operator_chain import BASE, CASES, GROUP
from processes import free_port
from pushing import PUSH_RULES, account, token
from real_chain import ENGINE, NOISY
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboards.panels import Dashboard
    from localprometheus import Series
    from real_chain import RealChain

pytestmark = [pytest.mark.cluster, pytest.mark.chain, pytest.mark.engine]
RULES = Path(__file__).resolve().parents[2] / "charts" / "lorafleet" / "alerts"
NAMES = [f"turn-{letter}" for letter in "abcdefghi"]
ONLY_WITH_A_FAULT = {
    "Conditions that are not True",
    "Failing adapters",
    "Passes that failed",
    "API errors",
    "Revisions given up",
}
"""Panels that have nothing to show on a fleet that is well."""


def sooner(text: str) -> str:
    """Return rules in which everything takes seconds instead of minutes, and nothing else differs."""
    text = re.sub(r"for: \w+", "for: 1s", text)
    return re.sub(r"\[\d+m\]|offset \d+m", lambda m: re.sub(r"\d+m", "8s", m[0]), text)


class Watch:
    """The Prometheus, and what it has seen fire."""

    def __init__(self, fleet: RealChain, directory: Path) -> None:
        self.fleet = fleet
        self.began = time.time()
        rules = directory / "rules.yaml"
        directory.mkdir()
        rules.write_text("".join(sooner(path.read_text()) for path in [RULES / "lorafleet.yaml"]))
        self.prometheus = LocalPrometheus(fleet.stack, directory / "prometheus", [rules])
        self.look_everywhere()
        eventually(lambda: len(self.prometheus.now("up == 1")) == 3, what="three targets are up")

    def look_everywhere(self) -> None:
        """Scrape everything where it is now."""
        fleet = self.fleet
        assert fleet.operator is not None
        pod = {"namespace": fleet.namespace, "pod": ENGINE}
        self.prometheus.scrape("lorafleet", fleet.operator.metrics_url)
        self.prometheus.scrape("engines", fleet.sidecars[ENGINE].metrics_url, **pod)
        self.prometheus.scrape("vllm", f"{fleet.engines[ENGINE].url}/metrics", **pod)

    def fires(self, alert: str) -> None:
        eventually(lambda: alert in self.prometheus.firing(), 120, f"{alert} does not fire")

    def clears(self, alert: str) -> None:
        eventually(lambda: alert not in self.prometheus.firing(), 120, f"{alert} does not clear")

    @contextmanager
    def alert(self, name: str) -> Iterator[None]:
        """The alert is silent before the block and fires in it; `clears` comes later."""
        assert name not in self.prometheus.firing()
        yield
        self.fires(name)

    def shown(self, board: Dashboard) -> dict[str, list[list[Series]]]:
        """Return what each panel shows of the time since the beginning, query by query."""
        chosen = choices(board, self.prometheus)
        assert all(chosen.values()), f"a variable offers nothing: {chosen}"
        return {
            panel.title: [
                self.prometheus.over(filled_in(query.expr, chosen), self.began, time.time())
                for query in panel.queries
            ]
            for panel in board.panels
        }

    def now(self, board: Dashboard, title: str) -> list[Series]:
        """Return what the first query of a panel gives at this moment."""
        (panel,) = [each for each in board.panels if each.title == title]
        chosen = choices(board, self.prometheus)
        return self.prometheus.now(filled_in(panel.queries[0].expr, chosen))

    def failing(self) -> set[tuple[str, str]]:
        """Return name and reason of what the panel of failing adapters shows now."""
        shown = self.now(FLEET, "Failing adapters")
        return {(each.labels["name"], each.labels["reason"]) for each in shown}


def has_values(series: list[Series]) -> bool:
    return any(not math.isnan(value) for each in series for value in each.values)


def empty(shown: dict[str, list[list[Series]]]) -> set[str]:
    """Return the panels of which a query has given no value."""
    return {title for title, queries in shown.items() if not all(map(has_values, queries))}


@contextmanager
def no_status_for(fleet: RealChain, name: str) -> Iterator[None]:
    """Let the API server refuse what is written of one adapter's status."""
    api = client.AdmissionregistrationV1Api(fleet.core.api_client)
    group = {"apiGroups": ["lorafleet.dev"], "apiVersions": ["*"]}
    rules = [
        {**group, "operations": ["UPDATE"], "resources": ["loraadapters/status"]},
        {**group, "operations": ["CREATE"], "resources": ["loraadapters"]},
    ]
    refused = f"request.operation == 'CREATE' ? 'probe' : '{name}'"
    spec = {
        "matchConstraints": {"resourceRules": rules},
        "validations": [
            {"expression": f"object.metadata.name != ({refused})", "reason": "Forbidden"}
        ],
    }
    policy = {"metadata": {"name": "no-status"}, "spec": spec}
    binding = {"policyName": "no-status", "validationActions": ["Deny"]}
    api.create_validating_admission_policy(policy)
    api.create_validating_admission_policy_binding(
        {"metadata": {"name": "no-status"}, "spec": binding}
    )
    try:
        eventually(lambda: _refuses_a_probe(fleet), what="the API server has read the policy")
        yield
    finally:
        api.delete_validating_admission_policy_binding("no-status")
        api.delete_validating_admission_policy("no-status")


def _refuses_a_probe(fleet: RealChain) -> bool:
    claim = {"persistentVolumeClaim": {"claimName": "claim", "path": "probe"}}
    body = {
        "apiVersion": "/".join(GROUP),
        "kind": "LoRAAdapter",
        "metadata": {"name": "probe"},
        "spec": {"baseModel": BASE, "poolRef": {"name": "pool"}, "source": claim},
    }
    try:
        fleet.custom.create_namespaced_custom_object(
            *GROUP, fleet.namespace, "loraadapters", body, dry_run="All"
        )
    except client.ApiException as error:
        return error.status == 403
    return False


@pytest.fixture(scope="module")
def watch(fleet: RealChain, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A fleet that has been used: adapters came, took turns, changed, and were first asked for."""
    folder = tmp_path_factory.mktemp("dashboards")
    address = f"127.0.0.1:{free_port()}"
    fleet.operator.process.stop()
    fleet.start_operator(
        LORAFLEET_NAMESPACES=f"{fleet.namespace},{NOISY}",
        LORAFLEET_PUSH_LISTEN=address,
        LORAFLEET_PUSH_DIR=str(folder / "pushed"),
    )
    watch = Watch(fleet, folder / "watch")
    tenant = {
        "name": "team",
        "namespaceSelector": {"names": [fleet.namespace]},
        "quota": {"stagedBytes": "32Mi"},
        "guarantee": {"arenaShare": "1Mi"},
    }
    fleet.patch_pool({"tenants": [tenant]})
    for index, name in enumerate(NAMES):
        fleet.s3_adapter(name, fleet.make(name, seed=200 + index))
    for name in NAMES:
        fleet.wait_ready(name)
    on_demand = fleet.make("asked", seed=300)
    fleet.s3_adapter("asked", on_demand, placement={"policy": "OnDemand"})
    fleet.wait_ready("asked")
    fleet.tokens(ENGINE, f"{fleet.namespace}/asked", max_tokens=2)
    push(fleet, address)
    fleet.make("changed", seed=301)
    fleet.s3.upload(fleet.files / "changed", NAMES[0])
    fleet.patch(NAMES[0], {"source": {"pollIntervalSeconds": 1}})
    digest = fleet.status(NAMES[0])["digest"]
    eventually(lambda: fleet.status(NAMES[0])["digest"] != digest, what="a second revision")
    fleet.wait_ready(NAMES[0])
    yield watch
    watch.prometheus.close()
    for found in fleet.adapters():
        fleet.delete("loraadapters", found["metadata"]["name"])
    fleet.patch_pool({"tenants": []})
    eventually(lambda: not fleet.adapters(), 60, "adapters stay after their deletion")


def push(fleet: RealChain, address: str) -> None:
    """Let a trainer push, once, and somebody who may not."""
    with KubeRest(fleet.kubeconfig) as kube:
        account(kube, fleet.namespace, "dashboards", PUSH_RULES)
        text = token(kube, fleet.namespace, "dashboards")
    named = {"name": "pushed", "base_model": BASE, "pool": "pool"}
    made = fleet.make("pushed", seed=303)
    with Fleet(address, fleet.namespace, token=lambda: text) as trainer:
        revision = trainer.push(made, step=7, **named)
        assert revision is not None
        revision.wait(timeout=120)
    with (
        Fleet(address, fleet.namespace, token=lambda: "a.b.c") as stranger,
        pytest.raises(AccessDenied),
    ):
        stranger.push(made, **named)


def test_adapters_that_take_turns_are_thrash_and_every_panel_shows_it(
    fleet: RealChain, watch: Watch
) -> None:
    watch.clears("LorafleetThrash")  # nine that come in a row push one another out, too
    with watch.alert("LorafleetThrash"):
        began = time.monotonic()
        # Nine take turns where three have room, on a busy machine for longer until that is seen.
        while (spent := time.monotonic() - began) < 8 or (
            spent < 120 and "LorafleetThrash" not in watch.prometheus.firing()
        ):
            for name in NAMES:
                fleet.tokens(ENGINE, f"{fleet.namespace}/{name}", max_tokens=1)
    fleet_shown = watch.shown(FLEET)
    memory_shown = watch.shown(ENGINE_MEMORY)
    assert empty(fleet_shown) <= ONLY_WITH_A_FAULT
    explained = {panel.title for panel in FLEET.panels if panel.nothing}
    assert explained >= ONLY_WITH_A_FAULT, "an empty panel says that all is well"
    assert empty(memory_shown) == set()

    (slots,) = watch.now(FLEET, "GPU slots in use")
    assert slots.values == (1.0,)
    ready, everything = fleet_shown["Adapters Ready"]
    assert ready[0].values[-1] == everything[0].values[-1] == len(NAMES) + 2
    for query in fleet_shown["Trainer's step"]:
        assert [(s.labels["name"], s.values[-1]) for s in query] == [("pushed", 7)]
    (behind,) = watch.now(FLEET, "Steps that engines are behind")
    assert (behind.labels["pod"], behind.values) == (ENGINE, (0.0,))
    tiers = watch.now(FLEET, "Engines of each adapter, by tier")
    assert {each.labels["name"] for each in tiers} >= set(NAMES)
    by_use = [[s.values[-1] for s in query] for query in memory_shown["Memory by use"]]
    (weights,), (cache,), (slot_bytes,), _ = by_use
    assert weights > slot_bytes > 0
    assert cache == pytest.approx(1 << 30, rel=0.02)  # VLLM_CPU_KVCACHE_SPACE
    arena = fleet.metric(ENGINE, "lorafleet_sidecar_staging_bytes", state="used")
    parts = watch.now(ENGINE_MEMORY, "Bytes by tier and tenant")
    assert sum(each.values[0] for each in parts) <= arena
    assert {each.labels["adapter_namespace"] for each in parts} == {fleet.namespace}
    assert max(v for each in memory_shown["Rebuilds by engine"][0] for v in each.values) > 0.5
    phases = {each.labels["phase"] for each in memory_shown["Time by phase"][0]}
    assert phases >= {"build", "fill", "rebuild"}
    watch.clears("LorafleetThrash")
    eventually(lambda: watch.prometheus.firing() == set(), 120, "a fleet that is well is silent")


def test_faults_fill_the_other_panels_fire_their_alerts_and_clear_them(
    fleet: RealChain, watch: Watch
) -> None:
    with (
        watch.alert("LorafleetAdapterNotReady"),
        no_status_for(fleet, "unwritable"),
        watch.alert("LorafleetAPIErrors"),
    ):
        shutil.copytree(CASES / "d10-rank-over-max", fleet.files / "too-high")
        fleet.s3_adapter("too-high", fleet.files / "too-high")
        for name in ("missing", "unwritable"):
            fleet.s3_adapter(name, None)
    fleet.wait_gone("unwritable")
    wanted = {("too-high", "RankTooHigh"), ("missing", "SourceNotFound")}
    eventually(lambda: watch.failing() == wanted, 60, f"the failing ones are not {wanted}")

    with watch.alert("LorafleetRollback"):
        never = {"canary": {"probe": {"prompt": "t1 t2", "expect": "is never said"}}}
        fleet.s3.upload(fleet.make("refused", seed=302), NAMES[1])
        fleet.patch(NAMES[1], {"rollout": never, "source": {"pollIntervalSeconds": 1}})
    # The points of a range are a second apart, and the newest may be older than what fired.
    eventually(lambda: empty(watch.shown(FLEET)) == set(), 30, "a panel stays empty")

    for name in ("too-high", "missing", NAMES[1]):
        fleet.wait_gone(name)
    watch.clears("LorafleetAdapterNotReady")
    watch.clears("LorafleetAPIErrors")
    watch.clears("LorafleetRollback")


def test_who_does_not_answer_is_told_of_until_it_does(fleet: RealChain, watch: Watch) -> None:
    with watch.alert("LorafleetEngineUnreachable"):
        fleet.sidecars[ENGINE].process.kill()
    fleet.start_sidecar(ENGINE)
    watch.look_everywhere()
    watch.clears("LorafleetEngineUnreachable")
    assert fleet.operator is not None
    with watch.alert("LorafleetOperatorDown"):
        fleet.operator.process.kill()
    fleet.start_operator(LORAFLEET_NAMESPACES=f"{fleet.namespace},{NOISY}")
    watch.look_everywhere()
    watch.clears("LorafleetOperatorDown")
    fleet.wait_ready(NAMES[0])
    assert fleet.tokens(ENGINE, f"{fleet.namespace}/{NAMES[0]}") != fleet.tokens(ENGINE, BASE)
