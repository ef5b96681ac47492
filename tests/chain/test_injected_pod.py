"""A pod that the policy made of a stock manifest, run: its sidecar and a real vLLM, as two users."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
import httpx
import pytest
from injection import SIDECAR, create, installed, manifest, pod_of
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet.v1alpha1 import sidecar_pb2_grpc as pb_grpc
from pod_processes import PodProcesses, memory_volume
from processes import free_port
from real_engine import BASE, source
from staging_client import stage
from tiny_models import make_dense

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kube_rest import Json, KubeRest

pytestmark = [pytest.mark.cluster, pytest.mark.engine]
USER = 1000


def stock_pod(model: Path, home: Path, port: int) -> Json:
    """The manifest of a CPU engine with the tiny model, in an image with a Python path of its own.

    The path is that of this environment's packages, but not of this checkout: an editable install is
    found by a file that only the environment's own interpreter reads.
    """
    pod = pod_of(
        manifest("repeated-variables"),
        annotations={
            "lorafleet.dev/arena": "64Mi",
            "lorafleet.dev/image-pythonpath": sysconfig.get_path("purelib"),
        },
    )
    [engine] = pod["spec"]["containers"]
    engine["args"] = [
        *("--model", str(model), "--served-model-name", BASE, "--host", "127.0.0.1"),
        *("--port", str(port), "--enforce-eager", "--max-model-len", "512"),
        *("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8"),
    ]
    more = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "HOME": str(home),
    }  # fmt: skip
    engine["env"] = [each for each in engine["env"] if each["name"] != "HOME"]
    engine["env"] += [{"name": name, "value": value} for name, value in more.items()]
    return pod


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Any:
    """End the process with its children at the end."""
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def until(what: Callable[[], Awaitable[bool]], processes: PodProcesses, name: str) -> None:
    """Wait for something that a container is to do; fails with the end of its log."""
    try:
        async with asyncio.timeout(240):
            while not await what():
                await asyncio.sleep(0.2)
    except TimeoutError:
        pytest.fail(processes.log(name).read_text()[-3000:])


async def test_an_adapter_answers_from_a_pod_that_only_the_api_server_changed(
    kube: KubeRest, volume: Path, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # the model is read by another user
    model, home, port = make_dense(tmp_path / "model"), tmp_path / "home", free_port()
    home.mkdir()
    home.chmod(0o777)
    listen, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
    values = [f"injection.settings.LISTEN={listen}", f"injection.settings.METRICS_LISTEN={metrics}"]
    with installed(kube, "tls.mode=none", *values) as (restricted, _):
        pod, _ = create(kube, restricted, stock_pod(model, home, port))
    memory_volume(volume)
    processes = PodProcesses(pod, {"/lorafleet": volume}, tmp_path)
    [*_, sidecar_spec] = pod["spec"]["initContainers"]
    command = [sys.executable, "-m", "lorafleet_sidecar", *sidecar_spec["command"][1:]]
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:

        async def answers(url: str) -> bool:
            with contextlib.suppress(httpx.TransportError):
                return (await http.get(url)).status_code == 200
            return False

        with ended(processes.start(SIDECAR, command)) as sidecar:
            # The kubelet starts vLLM once the startup probe has answered.
            await until(lambda: answers(f"http://{metrics}/healthz"), processes, SIDECAR)
            _look_at_the_volume(volume)
            # An interpreter that knows nothing of this environment but the variables.
            vllm = [sys._base_executable, "-m", "vllm.entrypoints.openai.api_server"]
            arguments = processes.container("vllm")["args"]
            with ended(processes.start("vllm", [*vllm, *arguments])) as engine:
                url = f"http://127.0.0.1:{port}"
                await until(lambda: answers(f"{url}/health"), processes, "vllm")
                _are_users(sidecar, engine)
                async with _sidecar_of(listen) as (channel, stub):
                    await _serve_one(http, channel, stub, url, tmp_path)
    assert "listening" in processes.log(SIDECAR).read_text()


@contextlib.asynccontextmanager
async def _sidecar_of(listen: str) -> AsyncIterator[tuple[grpc.aio.Channel, Any]]:
    async with grpc.aio.insecure_channel(listen) as channel:
        yield channel, pb_grpc.SidecarServiceStub(channel)  # type: ignore[no-untyped-call]


async def _serve_one(
    http: httpx.AsyncClient, channel: grpc.aio.Channel, stub: Any, url: str, folder: Path
) -> None:
    stream = stub.WatchEngine(pb.WatchEngineRequest())
    async with asyncio.timeout(60):
        while (found := (await stream.read()).inventory).health != pb.ENGINE_HEALTH_READY:
            assert found.health != pb.ENGINE_HEALTH_STOCK, "the plugin is not in vLLM"
    stream.cancel()
    staged, _ = await stage(channel, source(folder / "adapter", "team/sql", 1))
    request = pb.LoadAdapterRequest(
        served_name="team/sql",
        adapter="team/sql",
        digest=staged.digest,
        publish=True,
        loader="direct",
    )
    loaded = (await stub.LoadAdapter(request)).loaded
    assert (loaded.tier, loaded.published) == (pb.TIER_GPU, True)
    texts = []
    for name in (BASE, "team/sql"):
        body = {"model": name, "prompt": "t1 t2 t3 t4", "max_tokens": 8, "temperature": 0}
        answer = await http.post(f"{url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        texts.append(answer.json()["choices"][0]["text"])
    assert texts[0] != texts[1]
    models = (await http.get(f"{url}/v1/models")).json()
    assert "team/sql" in json.dumps(models)


def _look_at_the_volume(volume: Path) -> None:
    """vLLM's user may read the arena and the plugin, and write to neither."""
    if os.geteuid() != 0:
        return
    for path in (volume / "arena", volume / "plugin" / "lorafleet_vllm" / "__init__.py"):
        for test, wanted in (("-r", 0), ("-w", 1)):
            look = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups"]
            assert subprocess.run([*look, "test", test, path]).returncode == wanted, (path, test)


def _are_users(sidecar: subprocess.Popen[bytes], engine: subprocess.Popen[bytes]) -> None:
    """Two users of one group."""
    if os.geteuid() != 0:
        return
    for process, user in ((sidecar, 65532), (engine, USER)):
        status = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        assert status["Uid"].split() == [str(user)] * 4
        assert "65532" in status["Groups"].split()
