"""An unknown vLLM, or one whose methods have changed, is left alone, and the handshake says why."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = {
    "0.25.1": False,
    "0.26.0": True,
    "0.32.0+cpu": True,
    "0.33.4": True,
    "0.34.0": False,
    "1.0.0": False,
    "dev": False,
}


@pytest.mark.parametrize("version", VERSIONS)
def test_only_versions_from_0_26_to_0_33_are_supported(version: str) -> None:
    from lorafleet_vllm import compat

    reason = compat.check(version, compat.WORKER_SIDE + compat.API_SIDE)
    expected = compat.OK
    if not VERSIONS[version]:
        expected = f"vLLM {version} is not supported: the plugin knows 0.26 to 0.33"
    assert reason == expected


CHANGES = {
    "a method is gone": (
        "LoRAModelManager._no_such_method",
        ("lora",),
        "LoRAModelManager._no_such_method does not exist",
    ),
    "a parameter was renamed": (
        "LoRAModelManager.activate_adapter",
        ("slot",),
        "takes ('lora_id',), the plugin calls it with ('slot',)",
    ),
    "a parameter was added": (
        "LoRAModelManager.activate_adapter",
        (),
        "needs a parameter lora_id that the plugin does not know",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_signature_is_named(change: str) -> None:
    from lorafleet_vllm import compat

    name, parameters, message = CHANGES[change]
    wanted = compat.Wanted("vllm.lora.model_manager", name, parameters)
    assert message in compat.check("0.32.0", (wanted,))


SCRIPT = """
import json, sys, vllm
if len(sys.argv) > 1:
    vllm.__version__ = sys.argv[1]
import lorafleet_vllm
lorafleet_vllm.register()
lorafleet_vllm.register()
from vllm.lora.model_manager import LoRAModelManager, LRUCacheLoRAModelManager
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager, WorkerLoRAManager
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
functions = {
    f"{cls.__name__}.{name}": value
    for cls in (LoRAModelManager, LRUCacheLoRAModelManager, WorkerLoRAManager,
                LRUCacheWorkerLoRAManager, OpenAIServingModels)
    for name, value in vars(cls).items() if hasattr(value, "__lorafleet__")
}
twice = [name for name, f in functions.items() if hasattr(f.__wrapped__, "__lorafleet__")]
print(json.dumps([sorted(functions), twice]))
"""


def patched(volume: Path | None, *arguments: str) -> tuple[list[str], list[str]]:
    """Register twice in a process of its own; returns (patched, patched twice)."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp"}
    if volume is not None:
        environment["LORAFLEET_VOLUME"] = str(volume)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    names, twice = json.loads(done.stdout.splitlines()[-1])
    return names, twice


def test_registering_twice_patches_both_managers_once(tmp_path: Path) -> None:
    names, twice = patched(tmp_path)
    assert twice == []
    for manager in ("WorkerLoRAManager", "LRUCacheWorkerLoRAManager"):
        assert f"{manager}.add_adapter" in names
        assert f"{manager}.create_lora_manager" in names


def test_without_a_volume_nothing_is_patched() -> None:
    assert patched(None) == ([], [])


def test_an_unknown_version_gets_the_handshake_alone(tmp_path: Path) -> None:
    assert patched(tmp_path, "0.99.0") == (["OpenAIServingModels.__init__"], [])


async def test_an_inactive_plugin_says_why_and_refuses_to_load(tmp_path: Path) -> None:
    from types import SimpleNamespace

    import httpx
    from lorafleet_vllm.control import Control
    from lorafleet_vllm.control_http import application
    from lorafleet_vllm.settings import Volume

    config = SimpleNamespace(lora_config=object(), parallel_config=SimpleNamespace())
    models = SimpleNamespace(
        engine_client=SimpleNamespace(vllm_config=config),
        base_model_paths=[SimpleNamespace(name="base")],
    )
    control = Control(Volume(tmp_path), models, "vLLM 0.99.0 is not supported")
    transport = httpx.ASGITransport(application(control))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        shake = (await client.get("/v1/handshake")).json()
        assert shake["compat"] == "vLLM 0.99.0 is not supported"
        body = {"served_name": "a", "digest": "sha256:" + "0" * 64, "loader": "direct"}
        refused = await client.post("/v1/load", json=body)
    assert refused.status_code == 503
    assert refused.json()["error"] == "the plugin is inactive: vLLM 0.99.0 is not supported"


async def test_the_workers_of_an_idle_engine_are_not_asked_again(tmp_path: Path) -> None:
    """A worker that is asked spins for a second: polled each second it would burn a core."""
    from types import SimpleNamespace

    from lorafleet_vllm.control import Control
    from lorafleet_vllm.served_names import ServedNames
    from lorafleet_vllm.settings import Volume

    asked: list[str] = []

    async def collective_rpc(method: str, args: tuple[object, ...] = ()) -> list[str]:
        asked.append(method)
        return [json.dumps({"rank": 0, "loads": len(asked)})]

    names = ServedNames(Volume(tmp_path), {"stock": SimpleNamespace(lora_path="/elsewhere")})
    config = SimpleNamespace(lora_config=object(), parallel_config=SimpleNamespace())
    engine = SimpleNamespace(vllm_config=config, collective_rpc=collective_rpc)
    control = Control(
        Volume(tmp_path), SimpleNamespace(engine_client=engine, lora_requests=names), "ok"
    )
    for _ in range(5):
        assert (await control.state())["workers"] == [{"rank": 0, "loads": 1}]
    assert asked == ["lorafleet_stats"]
    names["stock"]  # a request for any adapter may move ours between the tiers
    assert (await control.state())["workers"] == [{"rank": 0, "loads": 2}]
    assert len(asked) == 2
