"""The dashboard's row about trainers: what they push, and how far engines are behind them."""

from __future__ import annotations

from dashboards.panels import ADAPTERS, Query, Row, graph

_O = "lorafleet_operator"
_NO_PUSHES = "Nobody has pushed"

TRAINERS = Row(
    "Trainers",
    (
        graph(
            "Trainer's step",
            "The step of the newest push, and the oldest that an engine serves; of the twenty adapters that are farthest.",
            Query(
                f"topk(20, max by (namespace, name) ({_O}_adapter_pushed_step{{{ADAPTERS}}}))",
                "{{namespace}}/{{name}} pushed",
            ),
            Query(
                f"topk(20, min by (namespace, name) ({_O}_adapter_engine_step{{{ADAPTERS}}}))",
                "{{namespace}}/{{name}} served",
            ),
            width=12,
            nothing=_NO_PUSHES,
        ),
        graph(
            "Steps that engines are behind",
            "By how many steps what an engine serves is older than the newest push; the twenty that lack most.",
            Query(
                f"topk(20, max by (namespace, name) ({_O}_adapter_pushed_step{{{ADAPTERS}}})"
                " - on (namespace, name) group_right"
                f" max by (namespace, name, pod) ({_O}_adapter_engine_step{{{ADAPTERS}}}))",
                "{{namespace}}/{{name}} {{pod}}",
            ),
            width=12,
            nothing=_NO_PUSHES,
        ),
        graph(
            "Pushes",
            "Revisions that trainers sent, by result, and calls that were refused.",
            Query(
                f"sum by (result) (rate({_O}_pushes_total[$__rate_interval]))",
                "{{result}}",
            ),
            Query(f"sum(rate({_O}_pushes_refused_total[$__rate_interval]))", "refused"),
            unit="ops",
            nothing=_NO_PUSHES,
        ),
        graph(
            "Bytes pushed",
            "Tensors that trainers sent; what the operator had is not sent.",
            Query(f"sum(rate({_O}_pushed_bytes_total[$__rate_interval]))", "received"),
            unit="Bps",
            nothing=_NO_PUSHES,
        ),
        graph(
            "Spool",
            "Pushed tensors on the operator's disk.",
            Query(f"sum({_O}_spool_bytes)", "bytes"),
            unit="bytes",
            nothing=_NO_PUSHES,
        ),
    ),
)
