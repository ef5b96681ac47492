"""A real vLLM on the CPU: in this process (to read its managers) or as an API server."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tiny_models
from arena_builder import ArenaBuilder
from engine_server import EngineServer
from paper_probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # threads that wait for each other crawl on a busy machine
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
LIMITS = {
    "max_loras": 2,
    "max_cpu_loras": 3,
    "max_lora_rank": 8,
    "max_model_len": 512,
    "max_num_seqs": 16,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.engine)
            # vLLM, torch and transformers warn about each other on import and at work.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny models `dense` and `moe`."""
    root = tmp_path_factory.mktemp("models")
    tiny_models.make_dense(root / "dense")
    tiny_models.make_moe(root / "moe")
    return root


@pytest.fixture(scope="module")
def in_process(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Probe]]:
    """Start an engine of the named model in this process; it ends with the test module."""
    volume = tmp_path_factory.mktemp("volume")
    arena = ArenaBuilder(volume)
    started: list[Probe] = []
    environment = {
        **ENVIRONMENT,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "LORAFLEET_VOLUME": str(volume),
    }

    def start(model: str) -> Probe:
        from vllm import LLM

        llm = LLM(
            model=str(models / model),
            enable_lora=True,
            enforce_eager=True,
            dtype="bfloat16",
            distributed_executor_backend="uni",
            **LIMITS,
        )
        started.append(Probe(llm, arena, tmp_path_factory.mktemp("adapters")))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield start
        started.clear()
        from vllm.distributed import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()


@pytest.fixture(scope="module")
def engine(in_process: Callable[[str], Probe]) -> Iterator[Probe]:
    """The dense model's engine in this process; nothing is loaded when the module ends."""
    started = in_process("dense")
    yield started
    started.clear()


@pytest.fixture(scope="module")
def start_server(
    models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., EngineServer]]:
    """Start an OpenAI server of the dense model with the plugin and a volume of its own.

    Takes more flags and environment of it; it ends with the test module.
    """
    # Room for answers that run until a test has looked at them, however long that takes.
    limits = {**LIMITS, "max_model_len": 1024}
    with ExitStack() as running:

        def start(*flags: str, **more: str) -> EngineServer:
            volume = tmp_path_factory.mktemp("served-volume")
            environment = {**ENVIRONMENT, "LORAFLEET_VOLUME": str(volume), **more}
            server = EngineServer(models / "dense", volume, limits, environment, extra=flags)
            return running.enter_context(server)

        yield start


@pytest.fixture(scope="module")
def server(start_server: Callable[..., EngineServer]) -> EngineServer:
    """An OpenAI server of the dense model."""
    return start_server()
