"""The Grafana dashboards of the chart, written from tables: `python -m dashboards [--check]`.

`fleet` and `engine_memory` say what is shown; `panels` what a panel is; `grafana` how Grafana wants it;
`substituted` and `pictures` ask a Prometheus the same and draw it.
"""
