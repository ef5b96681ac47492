"""Pickled adapters: what torch writes is read right, everything else is refused unexecuted."""

import io
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lorafleet.errors import InvalidAdapter, LorafleetError, TooLarge
from lorafleet_operator.sources.assemble import resolve
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.torch_pickle import stored_tensors
from source_builders import CONFIG, MemoryTree, read_tensors

BIN = "adapter_model.bin"


def saved(value: Any, **options: Any) -> bytes:
    into = io.BytesIO()
    torch.save(value, into, **options)
    return into.getvalue()


async def converted(content: bytes, settings: SourceSettings | None = None):
    tree = MemoryTree({"adapter_config.json": CONFIG, BIN: content})
    return await resolve(tree, settings or SourceSettings(), allow_pickle=True)


async def refused(content: bytes, error: type[LorafleetError] = InvalidAdapter) -> str:
    with pytest.raises(error) as caught:
        await converted(content)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def plain(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("zipped", [True, False])
async def test_what_torch_saves_comes_out_as_torch_has_it(zipped: bool) -> None:
    base = torch.randn(40, 30)
    tensors = {
        "plain": torch.randn(8, 16),
        "bf16": torch.randn(4, 5).to(torch.bfloat16),
        "half": torch.randn(7).half(),
        "double": torch.randn(3, 2, 4).double(),
        "ints": torch.arange(5, dtype=torch.int16),
        "bools": torch.tensor([True, False, True]),
        "transposed": base.T,
        "rows": base[3:9],
        "columns": base[:, 4:20],
        "every third": base[::3, 1::2],
        "permuted": torch.randn(3, 4, 5).permute(2, 0, 1),
        "scalar": torch.tensor(4.0),
        "empty": torch.empty(0, 4),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "tied": base,
    }
    found = await converted(saved(tensors, _use_new_zipfile_serialization=zipped))
    assert found.normalized == ("adapter_model.bin converted to adapter_model.safetensors",)
    read = await read_tensors(found)
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        _, shape, content = read[name]
        assert shape == tuple(tensor.shape), name
        assert content == plain(tensor), name
    assert read["bf16"][0] == "BF16"
    assert read["bools"][0] == "BOOL"


async def test_a_state_dict_with_metadata_is_a_dict_of_tensors() -> None:
    state = torch.nn.Linear(3, 2).state_dict()
    assert hasattr(state, "_metadata")
    read = await read_tensors(await converted(saved(state)))
    assert read["weight"] == ("F32", (2, 3), plain(state["weight"]))


@given(st.integers(0, 400), st.integers(0, 400))
async def test_any_range_of_a_reordered_tensor_is_right(one: int, other: int) -> None:
    tensor = torch.arange(10 * 10, dtype=torch.float32).reshape(10, 10).T
    found = await converted(saved({"t": tensor}))
    begin, end = sorted((one, other))
    assert bytes(await found.read(begin, end - begin)) == plain(tensor)[begin:end]


async def test_conversion_reads_no_tensor_data() -> None:
    tree = MemoryTree({"adapter_config.json": CONFIG, BIN: saved({"t": torch.zeros(1 << 20)})})
    await resolve(tree, SourceSettings(), allow_pickle=True)
    assert sum(length for _, length in tree.opened[BIN].reads) < 300_000


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def archive(pickled: bytes, **members: bytes) -> bytes:
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_STORED) as writer:
        writer.writestr("archive/data.pkl", pickled)
        for name, content in members.items():
            writer.writestr(f"archive/{name}", content)
    return into.getvalue()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Call(print, "executed"), "builtins.print"),
        (Call(eval, "1/0"), "builtins.eval"),
        (Call(exec, "raise SystemExit"), "builtins.exec"),
        (Call(__import__, "os"), "builtins.__import__"),
        (Call(getattr, 1, "real"), "builtins.getattr"),
        (Call(pickle.loads, b"N."), "_pickle.loads"),
        (io.BytesIO, "_io.BytesIO"),
        (torch.load, "torch.serialization.load"),
        (slice(1), "builtins.slice"),
        (torch.device("cpu"), "torch.device"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
async def test_any_other_name_is_an_unsafe_pickle(
    value: Any, name: str, protocol: int, capfd: pytest.CaptureFixture[str]
) -> None:
    content = archive(pickle.dumps({"a": value}, protocol=protocol))
    text = await refused(content)
    assert text.startswith("unsafe pickle: adapter_model.bin refers to ")
    assert protocol < 4 or name in text
    assert "executed" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"(iposix\ngetcwd\n.", "refers to posix.getcwd"),
        (b"\x80\x02cposix\ngetcwd\n)R.", "refers to posix.getcwd"),
        (b"\x80\x04\x8c\x05posix\x8c\x06getcwd\x93)R.", "refers to posix.getcwd"),
        (b"\x80\x04\x8c\x0btorch._utils\x8c\x01x\x93.", "malformed pickle"),
        (b"\x80\x02\x82\x01.", "uses EXT1"),
        (b"\x80\x02I1\n.", "uses INT"),
        (b"\x80\x02ctorch\nFloatStorage\n)\x81.", "uses NEWOBJ"),
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "malformed pickle"),
        (b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.", "malformed pickle"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "malformed pickle"),
        (b"\x80\x02K\x01.", "is not a dict of tensors"),
        (b"\x80\x02}X\x01\x00\x00\x00aK\x01s.", "is not a dict of tensors: 'a' is none"),
        (b"\x80\x02}K\x01K\x01s.", "malformed pickle"),
        (b"\x80\x02}(X\x01\x00\x00\x00au.", "malformed pickle"),
        (b"\x80\x02", "malformed pickle"),
        (b"\x80\x02u.", "malformed pickle"),
        (b"\x80\x02h\x05.", "malformed pickle"),
        (b"", "malformed pickle"),
        (b"\x80\x02}.", "no LoRA tensors in adapter_model.bin"),
    ],
)
async def test_handmade_programs_end_in_one_line(program: bytes, message: str) -> None:
    assert message in await refused(archive(program))


def tensor_program(
    offset: int = 0, shape: tuple[Any, ...] = (2, 2), strides: Any = (2, 1)
) -> bytes:
    """The pickle of one tensor over storage 0, with any numbers."""
    good = zipfile.ZipFile(io.BytesIO(saved({"t": torch.zeros(2, 2)}))).read("archive/data.pkl")
    head, _, tail = good.partition(b"QK\x00K\x02K\x02\x86")
    rest = tail[tail.index(b"\x89") :]
    # (storage, offset, shape, strides, ...): three items instead of the tuple of the three.
    middle = b"".join(pickle.dumps(part, protocol=2)[2:-1] for part in (offset, shape, strides))
    return head + b"Q" + middle + rest


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"offset": 1}, "reaches to byte 20 of a storage of 16 bytes"),
        ({"shape": (3, 2)}, "reaches to byte 24 of a storage of 16 bytes"),
        ({"shape": (1 << 40, 1 << 40), "strides": (0, 0)}, "is not contiguous and larger"),
        ({"shape": (1 << 20, 2), "strides": (0, 1)}, "is an expanded view"),
        ({"shape": (1 << 60, 2)}, "malformed pickle"),
        ({"offset": -1}, "malformed pickle"),
        ({"shape": (2, 2), "strides": (2,)}, "malformed pickle"),
        ({"shape": (1,) * 9, "strides": (1,) * 9}, "malformed pickle"),
        ({"shape": (True, 2)}, "malformed pickle"),
    ],
)
async def test_a_tensor_never_reaches_out_of_its_storage(
    numbers: dict[str, Any], message: str
) -> None:
    program = tensor_program(**numbers)
    assert message in await refused(archive(program, **{"data/0": bytes(16)}))


async def test_the_same_program_with_right_numbers_is_accepted() -> None:
    content = archive(tensor_program(), **{"data/0": bytes(range(16)), "byteorder": b"little"})
    assert await read_tensors(await converted(content)) == {"t": ("F32", (2, 2), bytes(range(16)))}


async def test_archives_that_torch_does_not_write_are_refused() -> None:
    good = saved({"t": torch.zeros(100)})
    assert "is incomplete" in await refused(good[:-30])
    assert "no data.pkl" in await refused(good.replace(b"data.pkl", b"data.pkX"))
    assert "is not little-endian" in await refused(
        archive(tensor_program(), **{"data/0": bytes(16), "byteorder": b"big"})
    )
    assert "lacks the storage of t" in await refused(archive(tensor_program()))
    into = io.BytesIO()
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as writer:
        writer.writestr("archive/data.pkl", b"\x80\x02}." * 100)
    assert "is compressed or encrypted" in await refused(into.getvalue())
    twice = archive(b"1", **{"data.pkX": b"2"}).replace(b"data.pkX", b"data.pkl")
    assert "lists 'data.pkl' twice" in await refused(twice)


def old(value: Any) -> bytes:
    return saved(value, _use_new_zipfile_serialization=False)


def with_another_key(content: bytes) -> bytes:
    at = content.index(b"q\x01a.\x04")  # the end of the list of keys, before the first count
    return content[: at - 1] + b"x" + content[at:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (old({"a": Call(print, "executed")}), "unsafe pickle: adapter_model.bin refers to "),
        (pickle.dumps(Call(print, "executed")), "unsafe pickle: adapter_model.bin refers to "),
        (pickle.dumps({"a": 1}), "is a pickle, but not a file of torch.save"),
        (pickle.dumps([torch.zeros(2)]), "unsafe pickle: adapter_model.bin refers to "),
        (old({"t": torch.zeros(4)})[:-1], "is incomplete (have "),
        (old({"t": torch.zeros(4)})[:80], "malformed pickle"),
        (old([torch.zeros(4)]), "is not a dict of tensors"),
        (old({"model": {"t": torch.zeros(4)}}), "is not a dict of tensors: 'model' is none (dict)"),
        (old({}), "no LoRA tensors in adapter_model.bin"),
        (old({"t": torch.zeros(4)}).replace(b"\xe9\x03", b"\xe8\x03"), "another version of torch"),
        (with_another_key(old({"t": torch.zeros(4)})), "has other storages than"),
    ],
)
async def test_files_without_an_archive_end_in_one_line(
    content: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert message in await refused(content)
    assert "executed" not in capfd.readouterr().out


async def test_a_directory_that_promises_too_much_is_refused_before_it_is_read() -> None:
    good = bytearray(archive(tensor_program(), **{"data/0": bytes(16)}))
    end = good.rfind(b"PK\x05\x06")
    struct.pack_into("<H", good, end + 10, 65535)
    assert "damaged archive" in await refused(bytes(good))
    struct.pack_into("<II", good, end + 12, 0x7FFFFFFF, 0)
    assert "entries, at most" in await refused(bytes(good), TooLarge)


@given(st.data())
async def test_a_mutated_archive_ends_in_our_error_or_a_readable_adapter(
    data: st.DataObject,
) -> None:
    content = bytearray(archive(tensor_program(), **{"data/0": bytes(16), "byteorder": b"little"}))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(LorafleetError):
        await read_tensors(await converted(bytes(content)))


@given(st.binary(max_size=200))
def test_any_bytes_as_a_pickle_end_in_our_error_or_tensors(program: bytes) -> None:
    with suppress(InvalidAdapter):
        stored_tensors(b"\x80\x02" + program, BIN)


def test_the_opcodes_of_torch_are_the_ones_interpreted() -> None:
    """If torch begins to write others, this says so before a user does."""
    member = saved(OrderedDict(a=torch.zeros(2), b=torch.nn.Parameter(torch.zeros(300, 70000))))
    program = zipfile.ZipFile(io.BytesIO(member)).read("archive/data.pkl")
    assert stored_tensors(program, BIN).keys() == {"a", "b"}
    assert {opcode.name for opcode, _, _ in pickletools.genops(program)} >= {"BINPERSID", "REDUCE"}
