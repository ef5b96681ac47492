"""Wrong inputs through the whole chain: one clear line each, no call to an engine, others go on.

The line is that of the condition Ready, which is what `kubectl describe` ends with.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from operator_chain import BASE, CASES, HERE, Chain
from waiting import eventually

if TYPE_CHECKING:
    from localstack import S3Server

pytestmark = [pytest.mark.cluster, pytest.mark.chain]
PROFILE = (HERE / "profiles" / "qwen3-dense.json").read_text()
KEY = "a-key-of-the-engine"
WRONG = "a-wrong-secret-value"

CONTENT = {
    "d46-truncated-download": (
        "InvalidAdapter",
        "adapter_model.safetensors is incomplete (have 10256 bytes, header wants 15384)",
    ),
    "d10-rank-over-max": ("RankTooHigh", "LoRA rank 16 is greater than max_lora_rank 8"),
    "d57-other-base-wider": ("InvalidAdapter", "(the update is [320, 320], expected [256, 256])"),
    "d27-vision-tower-keys": (
        "InvalidAdapter",
        "model.visual.blocks.0.attn.qkv is not a LoRA module of the engine",
    ),
    "d51-config-missing": ("SourceNotFound", "adapter_config.json not found in pvc://"),
    "d59-other-base-same-shapes": ("BaseModelMismatch", "was trained for other-org/some-other-7b"),
    "d45-bin-unsafe-pickle": ("InvalidAdapter", "unsafe pickle: adapter_model.bin refers to"),
    "d48-no-tensors": ("InvalidAdapter", "no LoRA tensors in adapter_model.safetensors"),
}
PATHS = {
    "linked-folder": "is a link to",
    "linked-file": "out of the volume",
    "fifo": "adapter_model.safetensors is not a plain file",
}
SPECS: dict[str, tuple[dict[str, Any], str, str]] = {
    "base-name": ({"servedName": BASE}, "NameTaken", f"served name {BASE} conflicts with a served"),
    "no-pool": ({"poolRef": {"name": "absent"}}, "PoolNotFound", "/absent does not exist"),
    "other-base": (
        {"baseModel": "other/model"},
        "BaseModelMismatch",
        f"engine-0: serves {BASE}, the adapter wants other/model",
    ),
    "twin": ({"servedName": "good"}, "NameTaken", "served name good is taken by "),
}
ENGINES = {
    "no-lora": (["--no-lora"], "engine runs without --enable-lora"),
    "stock-no-lora": (["--plain", "--no-lora"], "engine runs without --enable-lora"),
    "no-updates": (["--plain", "--no-updates"], "(VLLM_ALLOW_RUNTIME_LORA_UPDATING is not set)"),
    "no-key": (["--api-key", KEY], "engine answered 401: set the engine's API key"),
}


def assert_refused(chain: Chain, name: str, reason: str, text: str) -> None:
    """Wait for the line and the reason that are expected of the adapter."""

    def told() -> bool:
        found = chain.full_condition(name, "Ready")
        return (
            (found.get("status"), found.get("reason")) == ("False", reason)
            and text in found["message"]  # an engine that starts has another line first
            and "\n" not in found["message"]
        )

    try:
        eventually(told)
    except AssertionError:
        pytest.fail(f"{name}: {text!r} is not in {chain.full_condition(name, 'Ready')}")


def volume_source(path: str) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": "claim", "path": path}}


def put_bad_paths(chain: Chain) -> None:
    """Put links out of the root and a pipe where adapters are looked for."""
    claim = chain.root / chain.namespace / "claim"
    outside = chain.root / "another-namespace" / "claim" / "sql"
    shutil.copytree(CASES / "d01-plain-bf16", outside)
    (claim / "linked-folder").symlink_to(outside)
    for folder in ("linked-file", "fifo"):
        (claim / folder).mkdir()
    for file in outside.iterdir():
        (claim / "linked-file" / file.name).symlink_to(file)
    shutil.copy(outside / "adapter_config.json", claim / "fifo")
    os.mkfifo(claim / "fifo" / "adapter_model.safetensors")


def put_nan(chain: Chain) -> None:
    """Make the last value of the adapter `nan` one."""
    file = chain.root / chain.namespace / "claim" / "nan" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-2] + b"\xc0\x7f")


def put_large(chain: Chain) -> None:
    """Make the adapter `large` one of 80 MB, which the arena of 64 MiB cannot hold."""
    file = chain.root / chain.namespace / "claim" / "large" / "adapter_model.safetensors"
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    wide, end = 80_000_000, 80_000_032
    header = {
        name.format("A"): {"dtype": "BF16", "shape": [2, wide // 4], "data_offsets": [0, wide]},
        name.format("B"): {"dtype": "BF16", "shape": [8, 2], "data_offsets": [wide, end]},
    }
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    os.truncate(file, 8 + len(raw) + end)


def test_wrong_content_and_wrong_specs_reach_no_engine(chain: Chain) -> None:
    chain.start_engine("engine-0", 0, "--profile", PROFILE)
    chain.start_engine("engine-1", 1, app="unchecked")
    chain.pool()
    chain.pool("unchecked", "unchecked")
    chain.adapter("good", servedName="good")
    chain.adapter("nan")
    chain.adapter("large", poolRef={"name": "unchecked"})
    put_nan(chain)
    put_large(chain)
    chain.start_operator()
    eventually(lambda: chain.ready("good"))
    for case in CONTENT:
        chain.adapter(case, case)
    put_bad_paths(chain)
    for path in PATHS:
        chain.adapter(path + "s", source=volume_source(path))
    for name, (spec, _, _) in SPECS.items():
        chain.adapter(name, **spec)
    for case, (reason, text) in CONTENT.items():
        assert_refused(chain, case, reason, text)
    for path, text in PATHS.items():
        assert_refused(chain, path + "s", "PathNotAllowed", text)
    for name, (_, reason, text) in SPECS.items():
        assert_refused(chain, name, reason, text)
    assert_refused(chain, "nan", "InvalidAdapter", "non-finite values in base_model.model.model.")
    assert_refused(chain, "large", "TooLarge", "engine-1: needs 78.0 MiB, may use 64.0 MiB")
    assert (chain.loads("engine-0"), chain.loads("engine-1")) == (1, 0)
    assert chain.served("engine-0") == {"good"}
    assert chain.ready("good")


def put_secret(chain: Chain, name: str, namespace: str = "", **values: str) -> None:
    body = {"metadata": {"name": name}, "stringData": values}
    chain.core.create_namespaced_secret(namespace or chain.namespace, body)


def s3_source(server: S3Server, secret: str) -> dict[str, Any]:
    address = {"bucket": server.bucket, "prefix": "sql", "endpoint": server.endpoint}
    reference = {"credentialsSecretRef": {"name": secret}} if secret else {}
    return {"s3": {**address, "pathStyle": True, "region": "us-east-1"}, **reference}


def test_engines_and_credentials_that_are_not_set_up_are_told_apart(chain: Chain) -> None:
    server = chain.stack.start_s3()
    server.upload(CASES / "d01-plain-bf16", "sql")
    keys = {"accessKeyID": server.access_key, "secretAccessKey": server.secret_key}
    other = f"{chain.namespace}-other"
    chain.core.create_namespace({"metadata": {"name": other}})
    put_secret(chain, "right", **keys)
    put_secret(chain, "elsewhere", other, **keys)
    put_secret(chain, "wrong", **{**keys, "secretAccessKey": WRONG})
    put_secret(chain, "half", accessKeyID=server.access_key)
    chain.start_engine("engine-0", 0)
    chain.pool()
    for index, (name, (options, _)) in enumerate(ENGINES.items()):
        chain.start_engine(name, index + 1, *options, app=name)
        chain.pool(name, name)
        chain.adapter(f"on-{name}", poolRef={"name": name})
    chain.pool("empty", "nobody")
    chain.adapter("on-empty", poolRef={"name": "empty"})
    chain.start_operator()
    for secret in ("right", "elsewhere", "wrong", "half", ""):
        chain.adapter(f"s3-{secret or 'none'}", source=s3_source(server, secret))
    label = f"Secret {chain.namespace}"
    for secret, text in {
        "elsewhere": f"{label}/elsewhere not found",
        "wrong": f"the credentials of {label}/wrong were refused",
        "half": f"{label}/half lacks key secretAccessKey",
        "none": "no credentials configured",
    }.items():
        assert_refused(chain, f"s3-{secret}", "AccessDenied", text)
    for name, (_, text) in ENGINES.items():
        assert_refused(chain, f"on-{name}", "NoMatchingEngines", text)
        eventually(
            lambda pool=name: (
                chain.condition(pool, "EnginesReady", "enginepools") == ("False", "EngineRefused")
            )
        )
        assert chain.loads(name) == 0
    assert_refused(chain, "on-empty", "NoMatchingEngines", "the pool has no engines")
    eventually(lambda: chain.ready("s3-right"))
    assert chain.loads("engine-0") == 1
    logs = [file.read_text() for file in chain.stack.logs.iterdir()]
    assert not [log for log in logs if WRONG in log or server.secret_key in log or KEY in log]
