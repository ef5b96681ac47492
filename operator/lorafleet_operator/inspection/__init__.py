"""The command `lorafleet`: what an adapter holds and which engine can take it, before anything runs.

For people and for the pipelines of trainers; the operator itself never calls it. Reading order:
`addresses` (PATH or URI to a source), `image` (the canonical tensors), `numbers` (what they
compute), `examine` (the verdict), `report` (how it is told), `cli`. Beside them `model_config`
and `offline_profile`: what vLLM would report for a model, from its config.json alone.
"""
