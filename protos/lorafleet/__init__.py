"""What operator, sidecar and plugin share: the wire contract and the pure adapter format.

Nothing here does I/O and nothing here imports torch, vllm, kopf or numpy. Reading order:
`errors`, `header`, `peft_config`, `profile`, `keys`, `places`, `rewrites`, `assemble`,
`preflight`, `packing`, `moves`, `layout`, `digest`, `frames`. The format itself: docs/format.md.
"""

__version__ = "0.1.0"
