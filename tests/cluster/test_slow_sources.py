"""Sources of one namespace that send next to nothing, without ever being silent: others go on."""

from __future__ import annotations

import asyncio
import json
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from aiohttp import web
from localstack import LocalStack
from resource_builders import adapter, grant, path
from simulated_fleet import BASE, POOL, SimulatedFleet
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

ENGINES, REPLICAS, SECONDS = 2, 2, 60
SLOW = 6
"""More adapters of slow sources than there are transfers at a time."""
_MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
_COLUMNS = 1 << 17
_PAUSE_SECONDS = 0.2


class Drip:
    """Serves one adapter, of which all but the head comes byte by byte."""

    def __init__(self) -> None:
        shapes = {"lora_A": [2, _COLUMNS], "lora_B": [16, 2]}
        header, end = {}, 0
        for name, shape in shapes.items():
            begin, end = end, end + 2 * shape[0] * shape[1]
            offsets = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
            header[f"{_MODULE}.{name}.weight"] = offsets
        text = json.dumps(header).encode()
        config = {"peft_type": "LORA", "base_model_name_or_path": BASE, "r": 2, "lora_alpha": 4}
        config |= {"task_type": "CAUSAL_LM", "target_modules": ["q_proj"], "bias": "none"}
        self.files = {
            "adapter_config.json": json.dumps(config).encode(),
            "adapter_model.safetensors": struct.pack("<Q", len(text)) + text + bytes(end),
        }
        self.dripping = 0
        """Answers that come byte by byte now."""
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Drip]:
        app = web.Application()
        app.router.add_get("/{number}/{name}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        yield self
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        content = self.files.get(request.match_info["name"])
        if content is None:
            return web.Response(status=404)
        asked = request.http_range
        begin, end = asked.start or 0, min(asked.stop or len(content), len(content))
        headers = {
            "ETag": '"1"',
            "Content-Range": f"bytes {begin}-{end - 1}/{len(content)}",
            "Content-Length": str(end - begin),
        }
        response = web.StreamResponse(status=206, headers=headers)
        await response.prepare(request)
        if begin == 0:
            await response.write(content[begin:end])
            return response
        self.dripping += 1
        try:
            for at in range(begin, end):
                await response.write(content[at : at + 1])
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self.dripping -= 1
        return response


async def test_slow_sources_of_one_namespace_leave_transfers_to_others(
    cluster: LocalCluster, kube: KubeRest, namespace: str, system: str, tmp_path: Path
) -> None:
    fleet = SimulatedFleet(
        cluster.kubeconfig, tmp_path, namespace, engines=ENGINES, replicas=REPLICAS
    )
    with LocalStack(tmp_path) as stack:
        async with fleet, Drip().running() as drip:
            kube.create(path("AdapterGrant", namespace), grant(**{"from": [{"namespace": system}]}))
            for number in range(SLOW):
                slow = adapter(
                    f"slow-{number}",
                    baseModel=BASE,
                    poolRef={"name": POOL, "namespace": namespace},
                    source={"http": {"url": f"http://127.0.0.1:{drip.port}/{number}/"}},
                    placement={"policy": "Spread", "replicas": 1},
                )
                kube.create(path("LoRAAdapter", system), slow)
            stack.start_operator(
                cluster.kubeconfig,
                LORAFLEET_NAMESPACES=f"{namespace},{system}",
                LORAFLEET_VOLUME_ROOT=str(fleet.root),
            )
            await until(lambda: drip.dripping >= 3)
            for number in range(6):
                await fleet.apply(f"a-{number}")
            await fleet.settled(SECONDS)
            await until(lambda: drip.dripping >= 3)  # the slow ones go on
