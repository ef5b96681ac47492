"""The operator's /healthz and /metrics in a process of their own: `python probes_server.py PORT`."""

from __future__ import annotations

import asyncio
import sys

from kubernetes.aio.client import ApiClient, Configuration
from lorafleet_operator.fleet import Fleet
from lorafleet_operator.metrics import ADAPTERS, Shown
from lorafleet_operator.probes import Probes
from lorafleet_operator.settings import OperatorSettings
from lorafleet_operator.world import World

ADAPTERS_SHOWN = 2000


async def _main(port: int) -> None:
    settings = OperatorSettings(listen=f"127.0.0.1:{port}", liveness_seconds=3600)
    async with ApiClient(Configuration(host="http://127.0.0.1:1")) as api:
        fleet = Fleet(settings, World({}, {}, {}, {}, set()), api)
        for number in range(ADAPTERS_SHOWN):
            ADAPTERS.show("team-a", f"adapter-{number}", Shown("base", (("Ready", "True"),), 1, 1))
        await Probes.start(fleet)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
