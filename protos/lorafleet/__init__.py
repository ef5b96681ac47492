"""What operator, sidecar and plugin share: the wire contract and the pure adapter format.

Nothing here does I/O and nothing here imports torch, vllm, kopf or numpy. Reading order:
`errors`, `header`, `peft_config`, `profile`, `keys`, `places`, `rewrites`, `assemble`,
`preflight`, `packing`, `moves`, `layout`, `digest`, `frames`. The format itself: docs/format.md.
"""

import os

# Read by gRPC when it is imported: the children that we start are other programs, and around a fork
# that it knows of gRPC loses timers (keepalive pings: a frozen neighbour was not noticed any more).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"
