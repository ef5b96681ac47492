"""The handed cases, staged as the operator and a sidecar do it, and read back from the arena.

A copy of a case on a claim's volume -> the volume source -> the operator's client and streaming ->
a sidecar's transfer service -> `revision.json` and the arena file.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from format_cases import CASES, EXPECTED, NUMPY, numbers
from lorafleet.chunk_plan import chunk_plan
from lorafleet.errors import LorafleetError
from lorafleet.header import parse_header
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source
from lorafleet_operator.transfer.client import SidecarClient
from lorafleet_operator.transfer.streaming import Limits, Payload, stage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from staging_server import Serving

INDEX = {
    row["case-id"]: row
    for row in csv.DictReader((CASES / "INDEX.tsv").read_text().splitlines(), delimiter="\t")
}
LOADED = [(case, part) for case, parts in EXPECTED.items() for part in parts]
NOT_BFLOAT16 = {"d02-all-fp32"}
"""Cases whose values are rounded on the way into an engine of bfloat16; all others are exact."""
CHUNK_BYTES = 64 << 10  # the least that a sidecar takes
LIMITS = Limits(window_chunks=4, stall_seconds=60, commit_seconds=60)
UNIT = 2.0**-8
"""Largest relative error of one rounding to bfloat16."""


class Factors(NamedTuple):
    """One module's A [rank, in] and B [out, rank], in float64; experts one by one.

    `scaling` is None where B has been multiplied by it.
    """

    scaling: float | None
    a: np.ndarray[Any, Any]
    b: np.ndarray[Any, Any]


def engine_of(case: str) -> str:
    """Return which tiny base model a case is for: dense or moe."""
    return INDEX[case]["engine"]


class Staged(NamedTuple):
    """What became of a case: its revision, and what its source rewrote."""

    digest: str
    normalized: tuple[str, ...]


async def stage_case(sidecar: Serving, claims: Path, case: str, part: str = "") -> Staged:
    """Stage a case's adapter. `claims` is a folder for the claim's volume.

    Raises the refusal, whether it is the source's or the sidecar's.
    """
    root = claims / "team-a" / "cases"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(CASES / case, root / case, symlinks=True)
    if case == "d54-hf-cache-symlinks":
        part = "snapshots/0123abcd"
    return await stage_path(sidecar, claims, f"{case}/{part}".rstrip("/"))


async def stage_path(
    sidecar: Serving, claims: Path, path: str, *, allow_pickle: bool | None = None, **manifest: Any
) -> Staged:
    """Stage the adapter at `path` of the claim `cases`; `manifest` are further fields of it."""
    source = open_source(
        {
            "persistentVolumeClaim": {"claimName": "cases", "path": path},
            "allowPickle": allow_pickle,
        },
        namespace="team-a",
        name="sql",
        settings=SourceSettings(volume_root=claims),
        secret=None,
    )
    client = SidecarClient("127.0.0.1", sidecar.port)
    try:
        content = await source.resolve()
        header = parse_header(content.header_bytes, content.data_bytes)
        manifest = pb.AdapterManifest(
            adapter="team-a/sql",
            fingerprint=content.fingerprint,
            safetensors_header=content.header_bytes,
            adapter_config=content.config_bytes,
            data_bytes=content.data_bytes,
            chunk_bytes=CHUNK_BYTES,
            **manifest,
        )
        plan = chunk_plan(header, CHUNK_BYTES)
        result = (await stage(Payload(manifest, plan, content.read), {"a": client}, LIMITS))["a"]
    finally:
        await client.close()
        await source.aclose()
    if isinstance(result, LorafleetError):
        raise result
    return Staged(result.digest, content.normalized)


def read_back(volume: Path, digest: str) -> dict[str, Factors]:
    """Return what `revision.json` and the arena file hold: module -> factors."""
    folder = volume / "revisions" / digest.removeprefix("sha256:")
    revision = json.loads((folder / "revision.json").read_text())
    dtype = NUMPY[{"bfloat16": "BF16", "float16": "F16", "float32": "F32"}[revision["dtype"]]]
    found: dict[str, Factors] = {}
    with (volume / revision["arena"]).open("rb") as arena:

        def packed(tensor: dict[str, Any]) -> np.ndarray[Any, Any]:
            arena.seek(revision["data_offset"] + tensor["offset"])
            content = arena.read(math.prod(tensor["shape"]) * dtype.itemsize)
            return np.frombuffer(content, dtype).reshape(tensor["shape"]).astype(np.float64)

        for name, module in revision["modules"].items():
            a, b, scaling = packed(module["a"]), packed(module["b"]), module["scaling"]
            if module["kind"] != "experts":
                found[name] = Factors(scaling, a, b)
                continue
            experts, _, projection = name.rpartition(".")
            each = scaling if isinstance(scaling, list) else [scaling] * len(a)
            for index, factors in enumerate(zip(each, a, b, strict=True)):
                found[f"{experts}.{index}.{projection}"] = Factors(*factors)
    return found


def differences(
    found: dict[str, Factors], case: str, part: str, *, a_rounded: int = 0, b_rounded: int = 0
) -> Iterator[str]:
    """Yield each number that is not EXPECTED.json's, and each module that changes too much.

    Exact but for float64's own error, unless the values were rounded to bfloat16 so many times.
    """
    wanted = EXPECTED[case][part]
    yield from (f"{name} is missing" for name in sorted(set(wanted) - set(found)))
    for name, factors in found.items():
        scaling = 1.0 if factors.scaling is None else factors.scaling
        computed = numbers(factors.a, factors.b, scaling)
        if name not in wanted:  # an expert that the source lacks
            if computed["fro"]:
                yield f"{name} changes the model, no update is expected"
            continue
        bounds = _rounding(factors, a_rounded, b_rounded)
        for key, value in wanted[name].items():
            if key == "scaling" and factors.scaling is None:
                continue
            if key in ("rank", "shape", "scaling"):
                right = computed[key] == value
            else:
                slack = 1e-9 * max(1.0, abs(value)) + bounds[key]
                right = abs(computed[key] - value) <= slack
            if not right:
                yield f"{name}: {key} is {computed[key]}, expected {value}"


def _rounding(factors: Factors, a_rounded: int, b_rounded: int) -> dict[str, float]:
    """Return how far roundings may move each number.

    Roundings are independent of each other: their sum over many values is bounded by four of its
    deviations, where each value's is at most UNIT. The worst case would let through anything.
    """
    scaling, a, b = factors.scaling or 1.0, factors.a, factors.b
    ones = np.ones(b.shape[0]), np.ones(a.shape[1])
    probes = np.cos(np.arange(b.shape[0]) + 1), np.sin(2 * np.arange(a.shape[1]) + 1)
    found = {}
    for key, (u, v) in {"sum": ones, "probe": probes}.items():
        of_b = np.linalg.norm((u[:, None] * b) * (a @ v))
        of_a = np.linalg.norm((a * v) * (u @ b)[:, None])
        found[key] = 4 * UNIT * abs(scaling) * math.hypot(b_rounded * of_b, a_rounded * of_a)
    norms = np.linalg.norm(b, axis=0) * np.linalg.norm(a, axis=1)
    moved = abs(scaling) * float(np.linalg.norm(norms))
    found["fro"] = UNIT * (a_rounded + b_rounded) * moved
    return found
