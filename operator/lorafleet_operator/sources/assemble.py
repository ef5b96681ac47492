"""From named files to one adapter: which files it consists of and where its data lies.

Reads the config and the header of each weights file, nothing else. The format of the weights is
chosen by their content, not by the file's extension.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from typing import TYPE_CHECKING

from lorafleet.errors import InvalidAdapter, SourceChanged, SourceNotFound, TooLarge

from lorafleet_operator.sources import bounds
from lorafleet_operator.sources.base import Blob, ResolvedAdapter, Tree
from lorafleet_operator.sources.bounds import CONFIG
from lorafleet_operator.sources.shards import read_shards
from lorafleet_operator.sources.torch_file import is_torch_file, read_torch_file
from lorafleet_operator.sources.weights import Weights, read_single, read_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

WEIGHTS = "adapter_model.safetensors"
INDEX = "adapter_model.safetensors.index.json"
PICKLES = ("adapter_model.bin", "adapter_model.pt")
_WEIGHTS_FILE = re.compile(r".+\.(safetensors|safetensors\.index\.json|bin|pt)")
_SHARD = re.compile(r".+-\d+-of-0*(\d+)\.safetensors")


def named_file(path: str) -> tuple[str, str]:
    """Return folder and weights' file name of a path that names either a folder or a file of it."""
    folder, _, name = path.rpartition("/")
    if name == CONFIG:
        return folder, WEIGHTS
    return (folder, name) if _WEIGHTS_FILE.fullmatch(name) else (path, WEIGHTS)


async def resolve(
    tree: Tree,
    settings: bounds.SourceSettings,
    *,
    allow_pickle: bool,
    weights_name: str = WEIGHTS,
    query: str = "",
) -> ResolvedAdapter:
    """Return the adapter that the tree holds now.

    `query` is what the address says beside `tree.uri`; it is hashed and shown to nobody.

    Raises `SourceNotFound` naming the missing file, `InvalidAdapter` if the files cannot be an
    adapter, `TooLarge` above a limit, and what the provider raises.
    """
    config = await tree.open(CONFIG)
    if config is None:
        raise SourceNotFound(f"{CONFIG} not found in {tree.uri}")
    config_bytes = await read_whole(config, bounds.MAX_CONFIG_BYTES)
    weights = await _find_weights(tree, settings, weights_name, allow_pickle=allow_pickle)
    if weights.data_bytes > settings.max_adapter_bytes:
        raise TooLarge(
            f"{weights.blobs[0].name} has {weights.data_bytes} bytes of tensors, "
            f"at most {settings.max_adapter_bytes} are allowed"
        )
    files = [config, *weights.blobs]
    normalized = weights.normalized
    if any(file.linked for file in files):
        normalized += ("links followed, plain files staged",)
    return ResolvedAdapter(
        fingerprint=_fingerprint([tree.uri, query], files, weights.header_bytes, config_bytes),
        header_bytes=weights.header_bytes,
        config_bytes=config_bytes,
        data_bytes=weights.data_bytes,
        revision=weights.blobs[0].revision,
        uri=tree.uri,
        segments=weights.segments,
        normalized=normalized,
        # What was read whole before the data: by now it may belong to another version of that.
        checks=tuple(
            partial(_unchanged, tree, file) for file in files if file.name.endswith(".json")
        ),
    )


async def _unchanged(tree: Tree, file: Blob) -> None:
    again = await tree.open(file.name)
    if again is None or again.identity != file.identity:
        raise SourceChanged(f"{file.name} in {tree.uri}: changed since it was resolved")


async def _find_weights(
    tree: Tree, settings: bounds.SourceSettings, weights_name: str, *, allow_pickle: bool
) -> Weights:
    if (shard := _SHARD.fullmatch(weights_name)) is not None and int(shard[1]) > 1:
        raise InvalidAdapter(
            f"{weights_name} in {tree.uri} is one of {shard[1]} shards; name their folder"
        )
    candidates = [weights_name]
    if weights_name == WEIGHTS:
        candidates += [INDEX, *PICKLES]
    for name in candidates:
        blob = await tree.open(name)
        if blob is None:
            continue
        if name.endswith(".index.json"):
            return await read_shards(tree, blob, settings)
        if is_torch_file(bytes(await blob.read(0, min(9, blob.size)))):
            if not allow_pickle:
                raise InvalidAdapter(
                    f"{name} is a pickle, which this source does not allow; "
                    f"save the adapter as {WEIGHTS} or set allowPickle"
                )
            return await read_torch_file(blob, settings)
        return await read_single(blob, settings)
    wanted = " or ".join(filter(None, (", ".join(candidates[:-1]), candidates[-1])))
    raise SourceNotFound(f"no {wanted} in {tree.uri}")


def _fingerprint(
    place: Sequence[str], files: Sequence[Blob], header_bytes: bytes, config_bytes: bytes
) -> str:
    # An ETag or a date tells apart versions of one file, not files: two adapters of one shape that
    # were uploaded in the same second have equal ones at many servers.
    parts = {
        "place": place,
        "files": [[file.name, file.size, file.identity] for file in files],
        "header": hashlib.sha256(header_bytes).hexdigest(),
        "config": hashlib.sha256(config_bytes).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
