"""The dashboard `fleet`: adapters, tenants, traffic, transfers and the operator itself."""

from __future__ import annotations

from dashboards.panels import (
    ADAPTER,
    ADAPTERS,
    ENGINE,
    ENGINES,
    NAMESPACE,
    POOL,
    POOLS,
    TENANT,
    Dashboard,
    Query,
    Row,
    graph,
    quantile,
    rate,
    stat,
    table,
)
from dashboards.trainers import TRAINERS

_O = "lorafleet_operator"
_E = "lorafleet_engine"
_S = "lorafleet_sidecar"
_NO_TENANTS = "No pool has spec.tenants"

_NOW = Row(
    "Now",
    (
        stat(
            "Adapters Ready",
            "Adapters of the chosen pools whose condition Ready is True, beside all of them.",
            Query(f'sum({_O}_adapters{{{POOLS}, ready="True"}}) or vector(0)', "Ready"),
            Query(f"sum({_O}_adapters{{{POOLS}}})", "all"),
        ),
        stat(
            "Adapters not Ready",
            "The table of failing adapters says which and why.",
            f'sum({_O}_adapters{{{POOLS}, ready!="True"}}) or vector(0)',
            thresholds=((1, "orange"), (10, "red")),
        ),
        stat(
            "Engines reachable",
            "Engines whose sidecar answers the operator, beside all of the pools.",
            Query(f"sum({_O}_engine_reachable{{{POOLS}}})", "reachable"),
            Query(f"count({_O}_engine_reachable{{{POOLS}}})", "all"),
        ),
        stat(
            "GPU slots in use",
            "Share of the slots (max_loras) of the chosen engines that hold an adapter.",
            f'sum({_E}_adapters{{{ENGINES}, tier="gpu"}}) / sum({_E}_slots{{{ENGINES}}})',
            unit="percentunit",
        ),
        stat(
            "Rebuilds per second",
            "Evicted adapters that a request brought back. Many mean that too few fit: thrash.",
            f"sum({rate(f'{_E}_rebuilds_total', ENGINES)})",
            unit="ops",
            thresholds=((0.1, "orange"), (0.5, "red")),
        ),
        stat(
            "Shards without an operator",
            "Pools of such a shard are looked after by nobody. Of all operators that are scraped.",
            f"sum(max by (job) ({_O}_shards) - sum by (job) ({_O}_shards_held))",
            thresholds=((1, "red"),),
        ),
    ),
)

_WHERE = Row(
    "What is where",
    (
        graph(
            "Adapters by tier",
            "Revisions on the chosen engines by the best memory: in a GPU slot, registered with the engine, in the "
            "arena only.",
            Query(f"sum by (tier) ({_E}_adapters{{{ENGINES}}})", "{{tier}}"),
            stacked=True,
        ),
        table(
            "Engines of each adapter, by tier",
            "On how many engines an adapter is, and in which memory. Which ones: kubectl lora ls, or the adapter's status.",
            f"sum by (namespace, name, tier) ({_O}_adapter_tier_engines{{{ADAPTERS}}})",
            "namespace",
            "name",
            "tier",
        ),
        table(
            "Failing adapters",
            "Adapters that are not Ready, with the reason in the condition. kubectl lora why says more.",
            f"sum by (namespace, name, reason) ({_O}_adapter_failing{{{ADAPTERS}}})",
            "namespace",
            "name",
            "reason",
            nothing="Every adapter is Ready",
        ),
        graph(
            "Engines that adapters lack",
            "Engines chosen for an adapter that do not serve it yet; the twenty that lack most.",
            Query(
                f'topk(20, sum by (namespace, name) ({_O}_adapter_engines{{{ADAPTERS}, state="desired"}})'
                f' - sum by (namespace, name) ({_O}_adapter_engines{{{ADAPTERS}, state="ready"}}))',
                "{{namespace}}/{{name}}",
            ),
            width=12,
        ),
        graph(
            "Conditions that are not True",
            "How many of the chosen adapters have a condition that should be True False or Unknown.",
            Query(
                f"sum by (type, status) ({_O}_adapter_condition{{{ADAPTERS}, "
                f'type=~"SourceResolved|Placed|Loaded|Routed|Ready", status!="True"}}) > 0',
                "{{type}} {{status}}",
            ),
            width=12,
            nothing="All are True",
        ),
    ),
)

_TENANTS = Row(
    "Tenants",
    (
        graph(
            "Top tenants by arena bytes",
            "Namespaces with the most bytes in the arenas of the chosen engines, all tiers together.",
            Query(
                f"topk(10, sum by (adapter_namespace) ({_S}_revision_bytes{{{ENGINES}}}))",
                "{{adapter_namespace}}",
            ),
            unit="bytes",
        ),
        graph(
            "Top tenants by adapters",
            "Tenants of the pools' spec.tenants by how many of their adapters have engines.",
            Query(f"topk(10, {_O}_tenant_adapters{{{POOLS}}})", "{{name}}: {{tenant}}"),
            nothing=_NO_TENANTS,
        ),
        graph(
            "Share of the staged quota",
            "Arena bytes of a tenant on its fullest engine as a share of its quota; 1 is all of it.",
            Query(
                f"{_O}_tenant_staged_bytes{{{POOLS}}} / {_O}_tenant_staged_quota_bytes{{{POOLS}}}",
                "{{name}}: {{tenant}}",
            ),
            unit="percentunit",
            thresholds=((0.8, "orange"), (1, "red")),
            nothing="No tenant has a quota of staged bytes",
        ),
        graph(
            "Kept and guaranteed bytes",
            "Arena bytes of adapters that keep a slot, and what every engine keeps for the tenant.",
            Query(f"{_O}_tenant_pinned_bytes{{{POOLS}}}", "{{tenant}} keeps a slot"),
            Query(f"{_O}_tenant_guaranteed_bytes{{{POOLS}}}", "{{tenant}} guaranteed"),
            unit="bytes",
            width=12,
            nothing=_NO_TENANTS,
        ),
        graph(
            "Loads that wait for a rate",
            "1 for a tenant whose loads wait for its loadsPerMinute.",
            Query(f"{_O}_tenant_throttled{{{POOLS}}}", "{{name}}: {{tenant}}"),
            width=12,
            nothing=_NO_TENANTS,
        ),
    ),
)

_REQUESTS = Row(
    "Requests and engines",
    (
        graph(
            "Requests",
            "Running and waiting requests as vLLM says, and those on adapters of this fleet.",
            Query(f"sum(vllm:num_requests_running{{{ENGINES}}})", "running"),
            Query(f"sum(vllm:num_requests_waiting{{{ENGINES}}})", "waiting"),
            Query(f"sum({_E}_requests_in_flight{{{ENGINES}}})", "on adapters"),
        ),
        graph(
            "First requests",
            "Requests that waited for an adapter that the engine lacked, by what came of them.",
            Query(
                f"sum by (outcome) ({rate(f'{_E}_first_requests_total', ENGINES)})", "{{outcome}}"
            ),
            unit="reqps",
        ),
        graph(
            "How long first requests waited",
            "Of those that were served.",
            Query(quantile(0.5, f"{_E}_first_request_seconds", ENGINES), "median"),
            Query(quantile(0.99, f"{_E}_first_request_seconds", ENGINES), "99 of 100"),
            unit="s",
        ),
        graph(
            "Engines by traffic",
            "Requests go to engines that are Warm, WarmTimedOut or Draining.",
            Query(f"sum by (traffic) ({_O}_pool_engines{{{POOLS}}})", "{{traffic}}"),
            stacked=True,
        ),
        graph(
            "Engines started again",
            "By the pools' rule, and what the sidecars saw: died while loading, or another cause.",
            Query(f"sum({_O}_pool_recycles_total{{{POOLS}}})", "by the rule"),
            Query(f"sum by (reason) ({_S}_engine_recycles_total{{{ENGINES}}})", "{{reason}}"),
        ),
        graph(
            "Revisions given up",
            "Rollbacks by reason, since the operator's start.",
            Query(f"sum by (reason) ({_O}_rollbacks_total)", "{{reason}}"),
            nothing="None was given up",
        ),
    ),
)

_TRANSFERS = Row(
    "Transfers",
    (
        graph(
            "Bytes",
            "Read from sources, sent by the operator, received by sidecars, passed on from sidecar to sidecar.",
            Query(f"sum(rate({_O}_source_read_bytes_total[$__rate_interval]))", "read"),
            Query(f"sum(rate({_O}_transfer_bytes_total[$__rate_interval]))", "sent"),
            Query(f"sum({rate(f'{_S}_received_bytes_total', ENGINES)})", "received"),
            Query(f"sum({rate(f'{_S}_reused_bytes_total', ENGINES)})", "had already"),
            Query(f"sum({rate(f'{_S}_forwarded_bytes_total', ENGINES)})", "passed on"),
            unit="Bps",
        ),
        graph(
            "Transfers in progress",
            "Stagings that run now.",
            Query(f"sum({_O}_transfers_in_progress)", "running"),
        ),
        graph(
            "Duration of transfers",
            "One staging to all its engines.",
            Query(quantile(0.5, f"{_O}_transfer_duration_seconds", ""), "median"),
            Query(quantile(0.99, f"{_O}_transfer_duration_seconds", ""), "99 of 100"),
            unit="s",
        ),
        graph(
            "What came of transfers",
            "Revisions that engines were to get, one by one: ok, or the reason.",
            Query(
                f"sum by (outcome) (rate({_O}_transfer_results_total[$__rate_interval]))",
                "{{outcome}}",
            ),
            unit="ops",
            width=12,
        ),
        graph(
            "Reads of sources",
            "By provider.",
            Query(
                f"sum by (source) (rate({_O}_source_read_bytes_total[$__rate_interval]))",
                "{{source}}",
            ),
            unit="Bps",
            width=12,
        ),
    ),
)

_OPERATOR = Row(
    "Operator",
    (
        graph(
            "Passes",
            "Passes per second over adapters and pools.",
            Query(
                f"sum by (kind) (rate({_O}_reconcile_duration_seconds_count[$__rate_interval]))",
                "{{kind}}",
            ),
            unit="ops",
        ),
        graph(
            "Duration of passes",
            "99 of 100 are shorter; transfers are included.",
            Query(
                quantile(0.99, f"{_O}_reconcile_duration_seconds", "", "kind"),
                "{{kind}}",
            ),
            unit="s",
        ),
        graph(
            "Queue",
            "How long passes that are due wait for a place (99 of 100 wait less).",
            Query(quantile(0.99, f"{_O}_pass_wait_seconds", "", "kind"), "{{kind}}"),
            unit="s",
            thresholds=((15, "orange"), (60, "red")),
        ),
        graph(
            "Passes that run",
            "Those that wait for a transfer or an engine included.",
            Query(f"sum by (kind) ({_O}_passes_running)", "{{kind}}"),
        ),
        graph(
            "API requests",
            "By verb; lists and watches are not counted.",
            Query(f"sum by (verb) (rate({_O}_api_requests_total[$__rate_interval]))", "{{verb}}"),
            unit="reqps",
        ),
        graph(
            "API errors",
            "Answers of the API server that are no success. 404 and 409 come with deletions and takeovers.",
            Query(
                f'sum by (verb, code) (rate({_O}_api_requests_total{{code!~"2.."}}[$__rate_interval]))',
                "{{verb}} {{code}}",
            ),
            unit="reqps",
            nothing="None",
        ),
        graph(
            "Passes that failed",
            "By the reason in the condition.",
            Query(
                f"sum by (reason) (rate({_O}_reconcile_errors_total[$__rate_interval]))",
                "{{reason}}",
            ),
            unit="ops",
            nothing="None",
        ),
        graph(
            "Leases",
            "Shards that each operator holds.",
            Query(f"sum by (instance) ({_O}_shards_held)", "{{instance}}"),
        ),
        graph(
            "Shards that changed hands",
            "Taken, and lost or given up, since the operator's start.",
            Query(f"sum by (change) ({_O}_shard_changes_total)", "{{change}}"),
        ),
    ),
)

FLEET = Dashboard(
    "lorafleet-fleet",
    "lorafleet / fleet",
    "Where the adapters of a fleet are, which fail and why, what tenants have, and how the operator fares.",
    (NAMESPACE, POOL, ENGINE, TENANT, ADAPTER),
    (_NOW, _WHERE, _TENANTS, _REQUESTS, _TRANSFERS, TRAINERS, _OPERATOR),
)
