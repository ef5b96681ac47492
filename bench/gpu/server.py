"""vLLM's OpenAI server with the plugin, as a process of its own, and its two APIs."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from shapes import Shape

_START_SECONDS = 400
_REPOSITORY = Path(__file__).resolve().parents[2]
BASE = "base"
_NO_MULTICAST = {  # NVLink multicast is the whole host's: a benchmark on a shared one leaves it alone
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
_ON_A_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # GiB; else half of what the machine has free


class Server:
    """`with Server(..) as server:` starts it and waits until it is healthy; `log` is its output."""

    def __init__(self, model: Path, volume: Path, options: dict[str, Any], log: Path) -> None:
        self.port = _free_port()
        self.log = log
        self._socket = volume / "run" / "engine.sock"
        flags = [
            f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
            for name, value in options.items()
            if value is not False
        ]
        self._command = [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(model), "--served-model-name", BASE),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *flags,
        ]
        folders = ("engine_sidecar", "protos", "tests", "bench/gpu")
        paths = [str(_entry_point(volume)), *(str(_REPOSITORY / each) for each in folders)]
        paths.append(os.environ.get("PYTHONPATH", ""))
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "LORAFLEET_VOLUME": str(volume),
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for collective_rpc
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        for name, value in {**_NO_MULTICAST, **_ON_A_CPU}.items():
            self._environment.setdefault(name, value)
        self._environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"vLLM ended at its start:\n{self.log.read_text()[-6000:]}")
            try:
                if self._request(_api(self.port), "GET", "/health", None)[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise TimeoutError(f"vLLM is not up:\n{self.log.read_text()[-6000:]}")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def control(self, call: str, **body: Any) -> dict[str, Any]:
        """POST to the plugin's control socket; the answer must be 200."""
        return self._checked(_Unix(str(self._socket)), "POST", f"/v1/{call}", body)

    def state(self) -> dict[str, Any]:
        """Return what the control socket says of the engine's workers."""
        return self._checked(_Unix(str(self._socket)), "GET", "/v1/state", None)

    def api(self, path: str, **body: Any) -> dict[str, Any]:
        """POST to vLLM's own API; the answer must be 200."""
        return self._checked(_api(self.port), "POST", path, body)

    def complete(self, model: str, tokens: int) -> str:
        """Let one request run to its end; returns its text."""
        body = {"model": model, "prompt": [1, 2, 3, 4], "max_tokens": tokens, "ignore_eos": True}
        text: str = self.api("/v1/completions", temperature=0, **body)["choices"][0]["text"]
        return text

    def _checked(
        self, connection: http.client.HTTPConnection, verb: str, path: str, body: Any
    ) -> dict[str, Any]:
        status, text = self._request(connection, verb, path, body)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {text[:500]}")
        try:
            content: dict[str, Any] = json.loads(text)
        except ValueError:
            return {"text": text}  # vLLM's own adapter calls answer with a sentence
        return content

    def _request(
        self, connection: http.client.HTTPConnection, verb: str, path: str, body: Any
    ) -> tuple[int, str]:
        data = None if body is None else json.dumps(body)
        try:
            connection.request(verb, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


class _Unix(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=300)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _api(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=300)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _entry_point(folder: Path) -> Path:
    """Return a folder from which vLLM finds the plugin of a plain checkout."""
    site = folder / "site"
    info = site / "lorafleet-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lorafleet\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nlorafleet = lorafleet_vllm:register\n"
    )
    return site


def write_model(shape: Shape, folder: Path) -> Path:
    """Write the model's config and a tokenizer of words t0, t1 .. for all of its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(shape.config()))
    words = {f"t{index}": index for index in range(shape.vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(folder)
    return folder
