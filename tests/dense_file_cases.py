"""Files of dense adapters: broken, cut, sharded, pickled, linked; and their configs' text."""

from __future__ import annotations

import io
import json
import pickle
from typing import TYPE_CHECKING, Any

import torch
from dense_case import (
    ATTENTION,
    CONFIG,
    WEIGHTS,
    DenseCase,
    config_of,
    file_of,
    framed,
    pairs,
    updates,
)

if TYPE_CHECKING:
    from dense_case import Tensors

PLAIN = pairs(*ATTENTION)
UPDATES = updates(PLAIN)
FILE = file_of(PLAIN)
INDEX = f"{WEIGHTS}.index.json"
SHARDS = tuple(f"adapter_model-0000{number}-of-00002.safetensors" for number in (1, 2))
HALVES = tuple({key: a for key, a in PLAIN.items() if f"layers.{n}." in key} for n in (0, 1))
COMMIT = "01234567" * 5
LINKED = "links followed, plain files staged"


def _broken(content: bytes, error: str) -> DenseCase:
    return DenseCase(PLAIN, files={WEIGHTS: content}, error=error)


def _headers() -> dict[str, DenseCase]:
    length = int.from_bytes(FILE[:8], "little")
    header, data = json.loads(FILE[8 : 8 + length]), FILE[8 + length :]
    first = next(key for key in header if key != "__metadata__")
    entry = header[first]

    def changed(**fields: Any) -> bytes:
        return framed({**header, first: {**entry, **fields}}, data)

    def loads(content: bytes) -> DenseCase:
        return DenseCase(PLAIN, UPDATES, files={WEIGHTS: content})

    twice = json.dumps(header).encode()
    twice = b"{" + json.dumps({first: entry}).encode()[1:-1] + b"," + twice[1:]
    moved = {
        key: value
        if key == "__metadata__"
        else {**value, "data_offsets": [offset + 2 for offset in value["data_offsets"]]}
        for key, value in header.items()
    }
    whole, names = len(FILE), WEIGHTS
    return {
        "an empty file": _broken(b"", f"{names} is incomplete (have 0 bytes, a header needs"),
        "cut in the length": _broken(
            FILE[:7], f"{names} is incomplete (have 7 bytes, a header needs"
        ),
        "cut in the header": _broken(
            FILE[:100],
            f"{names} is incomplete (have 100 bytes, header wants at least {8 + length})",
        ),
        "cut after the header": _broken(
            FILE[: 8 + length],
            f"{names} is incomplete (have {8 + length} bytes, header wants {whole})",
        ),
        "one byte short": _broken(
            FILE[:-1], f"{names} is incomplete (have {whole - 1} bytes, header wants {whole})"
        ),
        "one byte too many": _broken(
            FILE + b"\0", f"{names} has {whole + 1} bytes, its header describes {whole}"
        ),
        "zeros": _broken(bytes(64), f"{names} is not a safetensors file: header of 0 bytes"),
        "a text": _broken(b'{"error": "no such repository"}', f"{names} is not a safetensors file"),
        "a pointer of Git LFS": _broken(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            f"{names} is a Git LFS pointer, not the file it points to",
        ),
        "a login page": _broken(b"<!doctype html><html>", f"{names} is a web page"),
        "no tensors": _broken(framed({}), f"no LoRA tensors in {names}"),
        "only base weights": DenseCase(
            {"lm_head.weight": PLAIN[first]}, error=f"no LoRA tensors in {names} (first: lm_head)"
        ),
        "a name twice": _broken(framed(twice, data), f"header has two entries named {first}"),
        "a gap": _broken(framed(moved, b"\0\0" + data), "header leaves a hole in the data before"),
        "offsets backwards": _broken(changed(data_offsets=[2048, 0]), "data_offsets are not 0 <="),
        "another size": _broken(
            changed(shape=[4, 255]), "span 2048 bytes, shape [4, 255] of BF16 needs"
        ),
        "an unknown type": _broken(changed(dtype="F4"), "has unknown dtype F4"),
        "a name of two lines": _broken(
            framed(json.dumps(header).replace("q_proj", "q\\nproj").encode(), data),
            "has a tensor name that is too long or not printable",
        ),
        "sorted backwards": loads(framed(dict(sorted(header.items(), reverse=True)), data)),
        "spaces behind the header": loads(framed(json.dumps(header).encode() + b" " * 99, data)),
        "metadata of null": loads(framed({**header, "__metadata__": None}, data)),
        "metadata of numbers": _broken(
            framed({**header, "__metadata__": {"step": 1}}, data),
            "__metadata__.step that is not a string",
        ),
    }


def _configs() -> dict[str, DenseCase]:
    def text(content: bytes, error: str, **more: Any) -> DenseCase:
        return DenseCase(PLAIN, config=content, error=f"adapter_config.json {error}", **more)

    good = config_of()
    return {
        "an empty config": text(b"", "is not JSON"),
        "a cut config": text(good[:-9], "is not JSON"),
        "a config with a mark": text(b"\xef\xbb\xbf" + good, "is not JSON"),
        "a config in UTF-16": text(good.decode().encode("utf-16"), "is not UTF-8 (byte 0)"),
        "a config of YAML": text(b"r: 4\n", "is not JSON"),
        "a config that is a list": text(b"[]", "is not a JSON object"),
        "two r": text(b'{"r": 8,' + good[1:], "has two entries named r"),
        "a deep config": text(b'{"a":' * 9999 + b"1" + b"}" * 9999, "is nested too deeply"),
        "a large config": text(good[:-1] + b" " * (1 << 20) + b"}", "has 10", reason="TooLarge"),
        "no config": DenseCase(
            PLAIN,
            files={CONFIG: None},
            error="adapter_config.json not found in ",
            reason="SourceNotFound",
        ),
        "a link for a config": DenseCase(
            PLAIN, UPDATES, files={CONFIG: "other.json", "other.json": good}, normalized=(LINKED,)
        ),
    }


def _shards() -> dict[str, DenseCase]:
    places = {key: shard for shard, half in zip(SHARDS, HALVES, strict=True) for key in half}
    first_key = next(iter(HALVES[1]))

    def index(**changes: Any) -> bytes:
        return json.dumps({"metadata": {}, "weight_map": {**places, **changes}}).encode()

    def case(
        *halves: Tensors | bytes | None, text: bytes = b"", error: str = "", **more: Any
    ) -> DenseCase:
        files: dict[str, Any] = {WEIGHTS: None, INDEX: text or index()}
        for shard, half in zip(SHARDS, halves, strict=True):
            files[shard] = file_of(half) if isinstance(half, dict) else half
        merged = "2 shards merged into one adapter_model.safetensors with 8 tensors"
        wanted = {} if error else {"updates": UPDATES, "normalized": (merged,)}
        return DenseCase(PLAIN, files=files, error=error, **wanted, **more)

    one, two = HALVES
    rest = dict(list(two.items())[1:])
    forbidden: dict[str, Any] = {"reason": "PathNotAllowed"}
    return {
        "shards": case(one, two),
        "a shard missing": case(one, None, error=f"{SHARDS[1]} is missing (named in {INDEX})"),
        "a shard cut": case(one, file_of(two)[:-1], error=f"{SHARDS[1]} is incomplete (have "),
        "a shard empty": case(one, b"", error=f"{SHARDS[1]} is incomplete (have 0 bytes"),
        "a tensor in two shards": case(PLAIN, two, error=f"two tensors for {first_key}"),
        "a shard without its tensor": case(
            one, rest, error=f"{SHARDS[1]} lacks {first_key} (named in {INDEX})"
        ),
        "a tensor that the index lacks": case(
            one, two | pairs("lm_head"), error=f"{SHARDS[1]} holds base_model.model.lm_head"
        ),
        "a shard elsewhere": case(
            one,
            two,
            text=index(**{first_key: f"../{SHARDS[1]}"}),
            error="which is not a plain file name",
            **forbidden,
        ),
        "a shard by an absolute path": case(
            one, two, text=index(**{first_key: "/etc/passwd"}), error="'/etc/passwd'", **forbidden
        ),
        "a shard of a long name": case(
            one, two, text=index(**{first_key: "a" * 256}), error="not a plain file", **forbidden
        ),
        "an index that is no JSON": case(one, two, text=b"{", error=f"{INDEX} is not JSON"),
        "an index without a map": case(one, two, text=b"{}", error=f"{INDEX} has no weight_map"),
        "one shard by name": case(
            one, two, error="is one of 2 shards; name their folder", path=SHARDS[0]
        ),
    }


class Call:
    """Something that a pickle may do."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def _pickles() -> dict[str, DenseCase]:
    tensors = {key: torch.tensor(array, dtype=torch.bfloat16) for key, array in PLAIN.items()}

    def saved(value: Any, **options: Any) -> bytes:
        into = io.BytesIO()
        torch.save(value, into, **options)
        return into.getvalue()

    def loads(content: bytes, name: str = "adapter_model.bin") -> DenseCase:
        said = (f"{name} converted to adapter_model.safetensors",)
        return DenseCase(PLAIN, UPDATES, files={WEIGHTS: None, name: content}, normalized=said)

    def refused(content: bytes, error: str, **more: Any) -> DenseCase:
        return DenseCase(
            PLAIN, files={WEIGHTS: None, "adapter_model.bin": content}, error=error, **more
        )

    old: dict[str, Any] = {"_use_new_zipfile_serialization": False}
    unsafe = "unsafe pickle: adapter_model.bin refers to "
    good = saved(tensors)
    return {
        "before torch 1.6": loads(saved(tensors, **old)),
        "protocol 5": loads(saved(tensors, pickle_protocol=5)),
        "adapter_model.pt": loads(good, "adapter_model.pt"),
        "a pickle of another name": loads(good, WEIGHTS),
        "transposed factors": loads(
            saved({key: array.t().contiguous().t() for key, array in tensors.items()})
        ),
        "parameters": loads(saved({key: torch.nn.Parameter(t) for key, t in tensors.items()})),
        "of three types": loads(
            saved({k: t.double() if "A" in k else t.half() for k, t in tensors.items()})
        ),
        "safetensors by the name of a pickle": DenseCase(
            PLAIN, UPDATES, files={WEIGHTS: None, "adapter_model.bin": FILE}
        ),
        "both kinds of weights": DenseCase(PLAIN, UPDATES, files={"adapter_model.bin": b"junk"}),
        "a checkpoint": refused(
            saved({"state_dict": tensors}), "is not a dict of tensors: 'state_dict' is none (dict)"
        ),
        "a step beside the tensors": refused(
            saved({**tensors, "step": 3}), "is not a dict of tensors: 'step' is none (int)"
        ),
        "a cut pickle": refused(good[:-1], "adapter_model.bin is incomplete (have "),
        "a harmful pickle": refused(saved({"a": Call(eval, "1")}), f"{unsafe}__builtin__.eval"),
        "a harmful old pickle": refused(
            saved(Call(print, "x"), **old), f"{unsafe}__builtin__.print"
        ),
        "a harmful bare pickle": refused(pickle.dumps(Call(exec, "1")), f"{unsafe}builtins.exec"),
        "a pickle that is not allowed": refused(
            good, "is a pickle, which this source does not allow", options=("--no-allow-pickle",)
        ),
    }


def _places() -> dict[str, DenseCase]:
    blob, snapshot = "../../blobs/a1b2", f"models--org--x/snapshots/{COMMIT}"
    cache: dict[str, Any] = {
        WEIGHTS: None,
        CONFIG: None,
        "models--org--x/blobs/a1b2": FILE,
        f"{snapshot}/{WEIGHTS}": blob,
        f"{snapshot}/{CONFIG}": config_of(),
    }

    def cached(
        path: str, error: str = "", reason: str = "SourceNotFound", **files: Any
    ) -> DenseCase:
        wanted = {} if error else {"updates": UPDATES, "normalized": (LINKED,)}
        inside = {f"models--org--x/{name}": content for name, content in files.items()}
        return DenseCase(
            PLAIN, files=cache | inside, path=path, error=error, reason=reason, **wanted
        )

    def linked(target: str, error: str, reason: str) -> DenseCase:
        return DenseCase(PLAIN, files={WEIGHTS: target}, error=error, reason=reason)

    def named(name: str) -> DenseCase:
        error = "no adapter_model.safetensors, adapter_model.safetensors.index.json, "
        return DenseCase(
            PLAIN, files={WEIGHTS: None, name: FILE}, error=error, reason="SourceNotFound"
        )

    head = {"refs/main": COMMIT.encode() + b"\n", "snapshots/4567/x": b""}
    return {
        "a snapshot": cached(snapshot),
        "a file of a snapshot": cached(f"{snapshot}/{WEIGHTS}"),
        "a cache of one snapshot": cached("models--org--x"),
        "a cache with a head": cached("models--org--x", **head),
        "a cache of two snapshots": cached(
            "models--org--x", "with 2 snapshots and no refs/main", **{"snapshots/4567/x": b""}
        ),
        "a cache with a stale head": cached(
            "models--org--x", "refs/main names the snapshot dead", **{"refs/main": b"dead"}
        ),
        "a cache with a broken head": cached(
            "models--org--x", "which is not there", **{"refs/main": b"\xff\xfe"}
        ),
        "a blob that was removed": cached(
            snapshot,
            f"{WEIGHTS} is a dangling link to {blob}",
            **{"blobs/a1b2": None},
        ),
        "a link that dangles": linked(
            "../../blobs/feedface",
            f"{WEIGHTS} is a dangling link to ../../blobs/feedface",
            "SourceNotFound",
        ),
        "a link to itself": linked(WEIGHTS, "passes more than 40 links", "PathNotAllowed"),
        "a link by an absolute path": linked(
            "/etc/passwd", "is a link to /etc/passwd", "PathNotAllowed"
        ),
        "a link to a folder": linked("../", f"{WEIGHTS} is not a plain file", "PathNotAllowed"),
        "the weights by name": DenseCase(PLAIN, UPDATES, path=WEIGHTS),
        "the config by name": DenseCase(PLAIN, UPDATES, path=CONFIG),
        "weights of another name": DenseCase(
            PLAIN, UPDATES, files={WEIGHTS: None, "lora.safetensors": FILE}, path="lora.safetensors"
        ),
        "nothing there": DenseCase(
            PLAIN, path="nothing", error="/nothing does not exist", reason="SourceNotFound"
        ),
        "a folder of checkpoints": DenseCase(
            PLAIN,
            files={WEIGHTS: None, CONFIG: None, f"checkpoint-1/{WEIGHTS}": FILE},
            error="adapter_config.json not found in ",
            reason="SourceNotFound",
        ),
        **{
            f"only {name}": named(name)
            for name in ("model.safetensors", "pytorch_lora_weights.safetensors")
        },
    }


CASES = {**_headers(), **_configs(), **_shards(), **_pickles(), **_places()}
