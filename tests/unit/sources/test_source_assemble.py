"""Which files make an adapter, and how much of them is read to know it."""

import json
import struct

import pytest
from lorafleet.errors import (
    InvalidAdapter,
    LorafleetError,
    PathNotAllowed,
    SourceChanged,
    SourceNotFound,
    TooLarge,
)
from lorafleet_operator.sources.assemble import named_file, resolve
from lorafleet_operator.sources.base import ResolvedAdapter
from lorafleet_operator.sources.bounds import SourceSettings
from source_builders import CONFIG, MemoryTree, adapter, data_of, pattern, read_all, safetensors

WEIGHTS = "adapter_model.safetensors"
INDEX = "adapter_model.safetensors.index.json"


async def resolved(files: dict[str, bytes], *, allow_pickle: bool = True) -> ResolvedAdapter:
    return await resolve(MemoryTree(files), SourceSettings(), allow_pickle=allow_pickle)


async def refused(files: dict[str, bytes], error: type[LorafleetError]) -> str:
    with pytest.raises(error) as caught:
        await resolved(files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_only_header_and_config_are_read_to_resolve() -> None:
    files = adapter(elements=1 << 20)
    tree = MemoryTree(files)
    found = await resolve(tree, SourceSettings(), allow_pickle=False)
    assert found.data_bytes == (4 << 20) + 128
    assert sum(length for _, length in tree.opened[WEIGHTS].reads) < 1000
    assert await read_all(found) == data_of(files[WEIGHTS])
    assert found.config_bytes == CONFIG
    assert found.normalized == ()


async def test_the_fingerprint_follows_each_file() -> None:
    one, same, other = [await resolved(adapter(seed=seed)) for seed in (1, 1, 2)]
    config = await resolved({**adapter(seed=1), "adapter_config.json": CONFIG + b" "})
    assert one.fingerprint == same.fingerprint
    assert len({one.fingerprint, other.fingerprint, config.fingerprint}) == 3


async def test_missing_files_are_named() -> None:
    files = adapter()
    assert (
        await refused({WEIGHTS: files[WEIGHTS]}, SourceNotFound)
        == "adapter_config.json not found in memory://adapter"
    )
    assert (
        await refused({"adapter_config.json": CONFIG}, SourceNotFound)
        == "no adapter_model.safetensors, adapter_model.safetensors.index.json, "
        "adapter_model.bin or adapter_model.pt in memory://adapter"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "is a Git LFS pointer"),
        (b"<!DOCTYPE html><html>login</html>", "is a web page"),
        (b"  <HTML>", "is a web page"),
        (b"", WEIGHTS),
        (b"\x01", WEIGHTS),
        (struct.pack("<Q", 1 << 60) + b"{}", WEIGHTS),
        (
            struct.pack("<Q", 500) + b"{}",
            "is incomplete (have 10 bytes, header wants at least 508)",
        ),
        (struct.pack("<Q", 2) + b"{}", "no LoRA tensors in adapter_model.safetensors"),
        (b"\x80\x02}q\x00.pickle", "is a pickle, but not a file of torch.save"),
    ],
)
async def test_what_is_no_safetensors_file_says_what_it_is(content: bytes, message: str) -> None:
    assert message in await refused(
        {"adapter_config.json": CONFIG, WEIGHTS: content}, InvalidAdapter
    )


async def test_a_cut_file_says_how_much_is_there_and_how_much_is_wanted() -> None:
    files = adapter()
    whole = len(files[WEIGHTS])
    files[WEIGHTS] = files[WEIGHTS][: whole - 100]
    assert (
        await refused(files, InvalidAdapter)
        == f"adapter_model.safetensors is incomplete (have {whole - 100} bytes, header wants {whole})"
    )


async def test_a_header_length_that_looks_like_a_pickle_is_still_safetensors() -> None:
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    header = json.dumps({name: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})
    header = header.ljust(0x280)
    file = struct.pack("<Q", len(header)) + header.encode() + b"abcd"
    assert file[:2] == b"\x80\x02"
    found = await resolved({"adapter_config.json": CONFIG, WEIGHTS: file})
    assert await read_all(found) == b"abcd"


async def test_limits_hold_before_anything_is_allocated() -> None:
    big = {**adapter(), "adapter_config.json": b" " * ((1 << 20) + 1)}
    assert "adapter_config.json has 1048577 bytes, at most 1048576" in await refused(big, TooLarge)
    small = SourceSettings(max_adapter_bytes=1000)
    with pytest.raises(TooLarge, match="at most 1000"):
        await resolve(MemoryTree(adapter()), small, allow_pickle=True)
    with pytest.raises(TooLarge, match="has 2 tensors, at most 1"):
        await resolve(MemoryTree(adapter()), SourceSettings(max_tensors=1), allow_pickle=True)


@pytest.mark.parametrize(
    ("path", "folder", "weights"),
    [
        ("", "", WEIGHTS),
        ("a/b", "a/b", WEIGHTS),
        ("a/checkpoint-5.5", "a/checkpoint-5.5", WEIGHTS),
        (f"a/{WEIGHTS}", "a", WEIGHTS),
        ("a/adapter_config.json", "a", WEIGHTS),
        ("x.safetensors", "", "x.safetensors"),
        ("a/adapter_model.bin", "a", "adapter_model.bin"),
        ("a/adapter_model.pt", "a", "adapter_model.pt"),
        (f"a/{INDEX}", "a", INDEX),
        ("a/.safetensors", "a/.safetensors", WEIGHTS),
    ],
)
def test_a_path_names_a_folder_or_a_file_of_it(path: str, folder: str, weights: str) -> None:
    assert named_file(path) == (folder, weights)


async def test_one_shard_is_not_an_adapter() -> None:
    """It would load, and most of the adapter would be missing."""
    files = {"adapter_config.json": CONFIG, "a-00001-of-00003.safetensors": adapter()[WEIGHTS]}
    files["a-00001-of-00001.safetensors"] = adapter()[WEIGHTS]
    tree, settings = MemoryTree(files), SourceSettings()
    with pytest.raises(InvalidAdapter) as caught:
        await resolve(
            tree, settings, allow_pickle=False, weights_name="a-00001-of-00003.safetensors"
        )
    assert (
        str(caught.value)
        == "a-00001-of-00003.safetensors in memory://adapter is one of 3 shards; name their folder"
    )
    name = "a-00001-of-00001.safetensors"
    assert await resolve(tree, settings, allow_pickle=False, weights_name=name)


async def test_files_of_two_versions_are_never_one_adapter() -> None:
    for name in ("adapter_config.json", INDEX):
        tree = MemoryTree(sharded())
        found = await resolve(tree, SourceSettings(), allow_pickle=False)
        await read_all(found)
        await found.confirm()
        tree.files[name] += b" "
        with pytest.raises(SourceChanged) as caught:
            await found.confirm()
        assert str(caught.value) == f"{name} in memory://adapter: changed since it was resolved"
        del tree.files[name]
        with pytest.raises(SourceChanged):
            await found.confirm()


def sharded() -> dict[str, bytes]:
    first = safetensors({"a.lora_A.weight": ("U8", [3], b"abc"), "b": ("U8", [2], b"de")})
    second = safetensors({"c": ("U8", [70000], pattern(70000))})
    names = [f"adapter_model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    weight_map = {"a.lora_A.weight": names[0], "b": names[0], "c": names[1]}
    index = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    return {"adapter_config.json": CONFIG, INDEX: index, names[0]: first, names[1]: second}


async def test_shards_are_one_adapter() -> None:
    found = await resolved(sharded())
    assert await read_all(found, step=1000) == b"abcde" + pattern(70000)
    header = json.loads(found.header_bytes)
    assert header["b"]["data_offsets"] == [3, 5]
    assert header["c"]["data_offsets"] == [5, 70005]
    assert found.normalized == (
        "2 shards merged into one adapter_model.safetensors with 3 tensors",
    )


def reindexed(**changes: str | None) -> dict[str, bytes]:
    files = sharded()
    weight_map = {**json.loads(files[INDEX])["weight_map"], **changes}
    kept = {name: file for name, file in weight_map.items() if file is not None}
    return {**files, INDEX: json.dumps({"weight_map": kept}).encode()}


async def test_wrong_shards_are_refused_by_name() -> None:
    second = "adapter_model-00002-of-00002.safetensors"
    files = sharded()
    del files[second]
    assert (
        await refused(files, InvalidAdapter)
        == f"{second} is missing (named in adapter_model.safetensors.index.json)"
    )
    assert "holds b, not in" in await refused(reindexed(b=None), InvalidAdapter)
    assert f"{second} lacks d (named" in await refused(reindexed(d=second), InvalidAdapter)
    assert "two tensors for b" in await refused(reindexed(b=second), InvalidAdapter)
    assert "not a plain file name" in await refused(reindexed(b="../secret"), PathNotAllowed)
    many = {str(n): f"{n}.safetensors" for n in range(300)}
    assert "names 302 files" in await refused(reindexed(**many), TooLarge)
    for index in (b"[]", b"{", b"[" * 100_000, b'{"weight_map": {"a": 1}}', b'{"weight_map": {}}'):
        assert INDEX in await refused({**sharded(), INDEX: index}, InvalidAdapter)


async def test_names_from_outside_never_break_the_line_or_fill_the_status() -> None:
    second = "adapter_model-00002-of-00002.safetensors"
    text = await refused(
        reindexed(**{"evil\nReady: True\x1b[0m" + "x" * 5000: second}), InvalidAdapter
    )
    assert "lacks evil?Ready: True?[0mxxx" in text
    assert len(text) < 400
