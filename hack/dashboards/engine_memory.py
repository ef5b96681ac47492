"""The dashboard `engine-memory`: what each engine's memory holds, and what loads cost."""

from __future__ import annotations

from dashboards.panels import (
    ENGINE,
    ENGINES,
    NAMESPACE,
    POOL,
    Dashboard,
    Query,
    Row,
    Variable,
    graph,
    rate,
    stat,
)

_E = "lorafleet_engine"
_S = "lorafleet_sidecar"
_RANK = "{{pod}} rank {{rank}}"
_TENANT = Variable(
    "tenant",
    "adapter_namespace",
    f"{_S}_revision_bytes{{{ENGINES}}}",
    "Namespace of adapters in the arenas.",
)
_OF_TENANT = f'{ENGINES}, adapter_namespace=~"$tenant"'


def _by_rank(name: str, what: str) -> Query:
    return Query(f"{_E}_{name}{{{ENGINES}}}", f"{_RANK}: {what}")


_NOW = Row(
    "Now",
    (
        stat(
            "Arena in use",
            "Share of the fullest arena that the engine may read now, or that is promised to a transfer: the rest can "
            "be freed.",
            f"max(({_S}_staging_in_use_bytes{{{ENGINES}}} + on (namespace, pod) "
            f'{_S}_staging_bytes{{{ENGINES}, state="reserved"}}) / on (namespace, pod) '
            f"{_S}_staging_limit_bytes{{{ENGINES}}})",
            unit="percentunit",
            thresholds=((0.8, "orange"), (0.9, "red")),
        ),
        stat(
            "GPU slots in use",
            "Share of the slots (max_loras) that hold an adapter.",
            f'sum({_E}_adapters{{{ENGINES}, tier="gpu"}}) / sum({_E}_slots{{{ENGINES}}})',
            unit="percentunit",
        ),
        stat(
            "Temporary peak",
            "Most device bytes that the last load of any worker took above the slots.",
            f"max({_E}_gpu_memory_peak_bytes{{{ENGINES}}})",
            unit="bytes",
        ),
        stat(
            "Kept out of their slots",
            "Served adapters that keep a slot, by residency or guarantee, and are in none.",
            f"sum({_E}_displaced_adapters{{{ENGINES}}})",
            thresholds=((1, "red"),),
        ),
        stat(
            "Quarantined",
            "Revisions that are not loaded any more because the engine died of them.",
            f"sum({_S}_quarantined_revisions{{{ENGINES}}})",
            thresholds=((1, "red"),),
        ),
        stat(
            "Engines without the plugin",
            "Served by vLLM's own load, or refused: nothing below is known of them.",
            f'sum({_E}_health{{{ENGINES}, state=~"stock|refused"}})',
            thresholds=((1, "orange"),),
        ),
    ),
)

_DEVICE = Row(
    "Device memory",
    (
        graph(
            "Memory by use",
            "Of each worker: the model, the KV cache, the LoRA slots, and what the last load left behind. Bytes of "
            "host memory where vLLM runs on a CPU, whose kernels keep most weights packed elsewhere.",
            _by_rank("weights_bytes", "weights"),
            _by_rank("kv_cache_bytes", "KV cache"),
            _by_rank("slot_bytes", "LoRA slots"),
            _by_rank("gpu_memory_kept_bytes", "temporary"),
            unit="bytes",
            stacked=True,
            width=12,
        ),
        graph(
            "Temporary memory of loads",
            "Above the slots at the worst moment of the last load, and what of it stayed. 0 on a CPU.",
            _by_rank("gpu_memory_peak_bytes", "peak"),
            _by_rank("gpu_memory_kept_bytes", "kept"),
            unit="bytes",
            width=12,
        ),
        graph(
            "Torch",
            "Device bytes that torch has allocated and reserved in the worker. 0 on a CPU.",
            _by_rank("gpu_memory_allocated_bytes", "allocated"),
            _by_rank("gpu_memory_reserved_bytes", "reserved"),
            unit="bytes",
            width=12,
        ),
        graph(
            "KV cache in use",
            "As vLLM says.",
            Query(f"vllm:kv_cache_usage_perc{{{ENGINES}}}", "{{pod}}"),
            unit="percentunit",
            width=12,
        ),
    ),
)

_ARENA = Row(
    "Arena",
    (
        graph(
            "Arena",
            "Bytes of committed revisions and of transfers in progress, what the engine may read now, and the limit. "
            "Full is no fault: what nobody has loaded makes way.",
            Query(f"{_S}_staging_bytes{{{ENGINES}}}", "{{pod}}: {{state}}"),
            Query(f"{_S}_staging_in_use_bytes{{{ENGINES}}}", "{{pod}}: in use"),
            Query(f"{_S}_staging_limit_bytes{{{ENGINES}}}", "{{pod}}: limit"),
            unit="bytes",
        ),
        graph(
            "Bytes by tier and tenant",
            "Arena bytes by the best memory in which the engine has them, and the namespace of the adapter.",
            Query(
                f"sum by (tier, adapter_namespace) ({_S}_revision_bytes{{{_OF_TENANT}}})",
                "{{adapter_namespace}}: {{tier}}",
            ),
            unit="bytes",
            stacked=True,
        ),
        graph(
            "Largest free extent",
            "What fits without evicting anything.",
            Query(f"{_S}_staging_largest_free_bytes{{{ENGINES}}}", "{{pod}}"),
            unit="bytes",
        ),
        graph(
            "Revisions by tier",
            "On each engine.",
            Query(f"sum by (pod, tier) ({_E}_adapters{{{ENGINES}}})", "{{pod}}: {{tier}}"),
            stacked=True,
            width=12,
        ),
        graph(
            "Staged revisions",
            "Committed in the arena.",
            Query(f"{_S}_staged_revisions{{{ENGINES}}}", "{{pod}}"),
            width=12,
        ),
    ),
)

_HOST = Row(
    "Host memory",
    (
        graph(
            "Page-locked memory",
            "The arena, which each rank registers once for all, copies of the device loader, and the budget.",
            Query(f"{_E}_pinned_bytes{{{ENGINES}}}", f"{_RANK}: {{{{kind}}}}"),
            Query(f"{_E}_pinned_limit_bytes{{{ENGINES}}}", "{{pod}}: budget"),
            unit="bytes",
        ),
        graph(
            "Workers",
            "Resident memory, and what of it is shared with no file.",
            _by_rank("host_memory_resident_bytes", "resident"),
            _by_rank("host_memory_private_bytes", "private"),
            unit="bytes",
        ),
        graph(
            "Growth with each load",
            "Private memory above that after the first loads, for each load since.",
            Query(
                f"({_E}_host_memory_private_bytes{{{ENGINES}}} - "
                f"({_E}_host_memory_baseline_bytes{{{ENGINES}}} > 0)) / "
                f"({_E}_loads_total{{{ENGINES}}} - {_E}_baseline_loads{{{ENGINES}}} > 0)",
                _RANK,
            ),
            unit="bytes",
            thresholds=((1 << 20, "orange"),),
            nothing="Known after the first 8 loads of an engine",
        ),
    ),
)

_LOADS = Row(
    "Loads, evictions, rebuilds",
    (
        graph(
            "Time by phase",
            "Seconds of each second that workers spend in each phase of loads and rebuilds.",
            Query(f"sum by (phase) ({rate(f'{_E}_phase_seconds_total', ENGINES)})", "{{phase}}"),
            unit="percentunit",
            stacked=True,
        ),
        graph(
            "Loads, evictions, rebuilds",
            "Rebuilds that follow evictions mean thrash: max_cpu_loras is too small for what is asked.",
            Query(f"sum({rate(f'{_E}_loads_total', ENGINES)})", "loads"),
            Query(f"sum({rate(f'{_E}_evictions_total', ENGINES)})", "evictions"),
            Query(f"sum({rate(f'{_E}_rebuilds_total', ENGINES)})", "rebuilds"),
            Query(f"sum({rate(f'{_E}_slot_evictions_total', ENGINES)})", "slots given up"),
            Query(f"sum({rate(f'{_E}_offloads_total', ENGINES)})", "offloads"),
            unit="ops",
        ),
        graph(
            "Rebuilds by engine",
            "An engine of which many adapters are asked in turn.",
            Query(f"sum by (pod) ({rate(f'{_E}_rebuilds_total', ENGINES)})", "{{pod}}"),
            unit="ops",
            thresholds=((0.1, "orange"), (0.5, "red")),
        ),
        graph(
            "Operations",
            "What the sidecar did on its engine, by outcome: ok or the reason.",
            Query(
                f"sum by (operation, outcome) ({rate(f'{_S}_engine_requests_total', ENGINES)})",
                "{{operation}}: {{outcome}}",
            ),
            unit="ops",
        ),
        graph(
            "Seconds for each operation",
            "Waiting and drains included.",
            Query(
                f"sum by (operation) ({rate(f'{_S}_engine_request_seconds_total', ENGINES)}) / "
                f"(sum by (operation) ({rate(f'{_S}_engine_requests_total', ENGINES)}) > 0)",
                "{{operation}}",
            ),
            unit="s",
        ),
        graph(
            "Health",
            "Engines by what their sidecar sees: starting, ready, stock, refused.",
            Query(f"sum by (state) ({_E}_health{{{ENGINES}}})", "{{state}}"),
            stacked=True,
        ),
    ),
)

ENGINE_MEMORY = Dashboard(
    "lorafleet-engine-memory",
    "lorafleet / engine memory",
    "What the memory of each engine holds: weights, KV cache, slots, arena, page-locked host memory; and what loads cost.",
    (NAMESPACE, POOL, ENGINE, _TENANT),
    (_NOW, _DEVICE, _ARENA, _HOST, _LOADS),
)
