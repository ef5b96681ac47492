"""What must be so when all has come to rest: names, arenas and slots against the manifests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fleet import control
from lorafleet_operator.transfer.client import SidecarClient

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet.v1alpha1 import sidecar_pb2 as pb
    from real_chain import RealChain


def problems(chain: RealChain, wanted: Mapping[str, str]) -> list[str]:
    """Return what differs from `wanted` (adapter name -> digest), nothing if all is exact."""
    served = {f"{chain.namespace}/{name}": digest for name, digest in wanted.items()}
    found = []
    for engine in sorted(chain.engines):
        inventory = asyncio.run(_inventory(chain, engine))
        with control(chain, engine) as client:
            state = client.get("/v1/state").json()
        found += [f"{engine}: {line}" for line in _arena(inventory)]
        found += [f"{engine}: {line}" for line in _names(inventory, state, served)]
        found += [f"{engine}: {line}" for line in _slots(state, chain.engines[engine].spec)]
    return found


async def _inventory(chain: RealChain, engine: str) -> pb.Inventory:
    sidecar = chain.sidecars[engine]
    client = SidecarClient(sidecar.address, sidecar.port)
    try:
        return await client.inventory(10)
    finally:
        await client.close()


def _arena(inventory: pb.Inventory) -> list[str]:
    arena = inventory.arena
    staged = sum(each.size_bytes for each in inventory.staged)
    in_use = sum(each.size_bytes for each in inventory.staged if each.in_use)
    lines = []
    if arena.used_bytes != staged:
        lines.append(f"arena: {arena.used_bytes} bytes used, its revisions have {staged}")
    if arena.in_use_bytes != in_use:
        lines.append(f"arena: {arena.in_use_bytes} bytes in use, its revisions have {in_use}")
    if arena.used_bytes + arena.reserved_bytes > arena.limit_bytes:
        lines.append("arena: more than its size")
    loaded = {each.digest for each in inventory.loaded}
    if loaded != {each.digest for each in inventory.staged if each.in_use}:
        lines.append("arena: in use is not what is loaded")
    return lines


def _names(inventory: pb.Inventory, state: dict[str, Any], served: dict[str, str]) -> list[str]:
    lines = []
    said = {each.served_name: each.digest for each in inventory.loaded if each.published}
    if said != served:
        lines.append(f"the sidecar says {said}, wanted {served}")
    stray = [each.served_name for each in inventory.loaded if not each.published]
    if stray:
        lines.append(f"loaded and not published: {stray}")
    revisions = {int(key): each for key, each in state["revisions"].items()}
    told = {name: revisions[number]["revision"] for name, number in state["served"].items()}
    right = {
        name: f"{name}@{digest.removeprefix('sha256:')[:12]}" for name, digest in served.items()
    }
    if told != right:
        lines.append(f"vLLM serves {told}, wanted {right}")
    if set(revisions) != set(state["served"].values()):
        lines.append(f"vLLM has {len(revisions)} revisions for {len(state['served'])} names")
    if any(each["in_flight"] for each in revisions.values()):
        lines.append("vLLM counts requests though none runs")
    return lines


def _slots(state: dict[str, Any], spec: Any) -> list[str]:
    lines = []
    known = {int(key) for key in state["revisions"]}
    for worker in state["workers"]:
        gpu, host = worker["gpu"], worker["host"]
        if len(gpu) > spec.max_loras or len(host) > spec.max_cpu_loras:
            lines.append(f"{len(gpu)} slots and {len(host)} places on the host are taken")
        if len(set(gpu)) != len(gpu) or not set(gpu) <= set(host) <= known:
            lines.append(f"slots {gpu} and host {host} are not of the revisions {sorted(known)}")
    return lines
