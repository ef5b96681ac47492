"""The readers under test: how an input for each is made, and what must hold after it.

`run` returns whether the input was accepted; it raises whatever the reader raised that is no
LorafleetError, and AssertionError where an answer is wrong.
"""

from __future__ import annotations

import asyncio
import tempfile
from abc import ABC, abstractmethod
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lorafleet import frames
from lorafleet.errors import LorafleetError, TransferInterrupted
from lorafleet.header import MAX_HEADER_BYTES, SafetensorsHeader, parse_header, render_header
from lorafleet.layout import chunk_plan, plan_layout
from lorafleet.peft_config import AdapterConfig
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.inspection.profile_file import read_profile
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.torch_file import read_torch_file
from lorafleet_operator.sources.torch_pickle import stored_tensors

from fuzzing import mutate, parts, pickles, seeds
from fuzzing.blob import Blob
from fuzzing.stage_target import Stage

if TYPE_CHECKING:
    from random import Random

MAX_MESSAGE = 1500
"""Characters of an error: it stands in a condition."""


class Target(Protocol):
    """One reader."""

    def make(self, random: Random, *, valid: bool = False) -> bytes:
        """Return an input; with `valid` one that must be accepted."""

    def run(self, data: bytes) -> bool:
        """Read the input; return whether it was accepted."""

    def close(self) -> None:
        """Free what the target holds."""


class _Plain(ABC):
    def close(self) -> None:  # noqa: B027  # most readers hold nothing
        """Nothing is held."""

    def run(self, data: bytes) -> bool:
        """Read the input; errors of ours are answers, if they are one bounded line."""
        try:
            self.read(data)
        except LorafleetError as refused:
            checked_line(str(refused))
            return False
        return True

    @abstractmethod
    def read(self, data: bytes) -> None:
        """Read the input."""


def checked_line(line: str) -> None:
    """Assert that an error is one bounded, printable line."""
    assert line, "an empty error"
    assert line.isprintable(), f"not one printable line: {line[:300]!r}"
    assert len(line) <= MAX_MESSAGE, f"an error of {len(line)} characters: {line[:300]}"


class Header(_Plain):
    """parse_header, and the way back by render_header."""

    def make(self, random: Random, *, valid: bool = False) -> bytes:
        """Return a header's JSON."""
        tensors = seeds.entries(random)
        if valid:
            return seeds.header(tensors)
        return header_input(random, tensors)

    def read(self, data: bytes) -> None:
        """Parse, and compare with what comes back from the rendered form."""
        header = parse_header(data)
        rendered = render_header(header)
        if len(rendered) <= MAX_HEADER_BYTES:
            assert parse_header(rendered[8:], header.data_bytes) == header


class Config(_Plain):
    """AdapterConfig.parse, and the patterns on names."""

    def make(self, random: Random, *, valid: bool = False) -> bytes:
        """Return an adapter_config.json."""
        raw = seeds.config(random)
        return raw if valid else config_input(random, raw)

    def read(self, data: bytes) -> None:
        """Parse, and ask for each module of the seeds."""
        config = AdapterConfig.parse(data, adapter="team-a/fuzz")
        for tensors in seeds.STYLES.values():
            for name, _ in tensors[::4]:
                rank = config.rank_for(name)
                assert rank >= 1
                assert config.scaling_for(name, rank) == config.scaling_for(name, rank)


class Layout(_Plain):
    """plan_layout with header, config, profile file and options."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lorafleet-fuzz-", dir="/dev/shm")
        self._file = Path(self._folder.name, "profile.json")

    def close(self) -> None:
        """Remove the profile's file."""
        self._folder.cleanup()

    def make(self, random: Random, *, valid: bool = False) -> bytes:
        """Return four parts."""
        tensors = seeds.entries(random)
        config, options = seeds.config(random), bytes([random.randrange(8)])
        if valid:
            plain = seeds.profile_of_seeds().to_json().encode()
            return parts.join([seeds.header(tensors), config, plain, b"\x00"])
        profile = seeds.profile(random).to_json().encode()
        if random.random() < 0.4:
            config = config_input(random, config)
        if random.random() < 0.1:
            profile = mutate.text(random, profile, [])
        header = seeds.header(tensors)
        if random.random() < 0.7:
            header = header_input(random, tensors)
        return parts.join([header, config, profile, options])

    def read(self, data: bytes) -> None:
        """Plan; the image must be readable and every copy inside of it."""
        header_json, config_json, profile_json, options = (parts.split(data) + [b""] * 4)[:4]
        flags = options[0] if options else 0
        self._file.write_bytes(profile_json)
        profile = read_profile(self._file)
        header = parse_header(header_json)
        layout = plan_layout(
            header,
            AdapterConfig.parse(config_json, adapter="team-a/fuzz"),
            profile,
            adapter="team-a/fuzz",
            allow_base_mismatch=bool(flags & 1),
            adapter_name="default" if flags & 2 else "",
            drop_unmatched="tower" if flags & 4 else "",
        )
        for line in (*layout.normalized, *layout.notes):
            checked_line(line)
        image = parse_header(layout.image_header[8:], layout.data_bytes)
        assert len(image.tensors) >= 2 * len(layout.modules)
        AdapterConfig.parse(layout.config_json, adapter="team-a/fuzz")
        for begin, length in islice(_cuts(header), 64):
            for copy in islice(layout.copies(begin, begin + length), 1000):
                assert 0 <= copy.src_offset < max(header.data_bytes, 1)
                assert 0 <= copy.dst_offset < layout.data_bytes


def _cuts(header: SafetensorsHeader) -> list[tuple[int, int]]:
    return chunk_plan(header, 64 << 10) if header.data_bytes <= 1 << 30 else []


class Frames(_Plain):
    """The hand-written protobuf reader, against the generated one."""

    def make(self, random: Random, *, valid: bool = False) -> bytes:
        """Return one message."""
        data = random.randbytes(random.choice([0, 1, 100, 5000]))
        message = random.choice(
            [
                frames.encode_chunk(random.choice(mutate.NUMBERS[3:9]), 77, data),
                frames.encode_manifest(pb.AdapterManifest(adapter="a").SerializeToString()),
                frames.encode_commit(),
                frames.encode_staging_id("0" * 32),
            ]
        )
        return message if valid else mutate.noise(random, message)

    def read(self, data: bytes) -> None:
        """Decode as both streams do; a chunk must be the one that protobuf reads."""
        try:
            stage = frames.decode_stage_request(data)
        except TransferInterrupted as refused:
            checked_line(str(refused))
            frames.decode_send_request(data)
            return
        if isinstance(stage, frames.ChunkFrame):
            chunk = pb.StageAdapterRequest.FromString(data).chunk
            assert (chunk.offset, chunk.crc32c, chunk.data) == (
                stage.offset,
                stage.crc32c,
                bytes(stage.data),
            )


class Pickle(_Plain):
    """adapter_model.bin: the zip's directory, the pickles, and the tensors' places."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def close(self) -> None:
        """End the event loop."""
        self._runner.close()

    def make(self, random: Random, *, valid: bool = False) -> bytes:
        """Return an archive, a file from before 1.6, or the bare pickle."""
        opcodes, storages = pickles.program(random)
        packed = pickles.archive if random.random() < 0.7 else pickles.legacy
        if valid:
            return packed(b"".join(opcodes), storages)
        if random.random() < 0.7:
            opcodes = pickles.changed(random, opcodes)
        raw = b"".join(opcodes)
        if random.random() < 0.2:
            raw = mutate.noise(random, raw)
        if random.random() < 0.5:
            return raw
        file = packed(raw, storages)
        return mutate.noise(random, file) if random.random() < 0.7 else file

    def read(self, data: bytes) -> None:
        """Read what the input is: an archive begins with PK, the old format with its magic."""
        if data[:2] == b"PK" or data[2:3] == b"\x8a":
            self._runner.run(self._read_file(data))
        else:
            stored_tensors(data, "adapter_model.bin")

    async def _read_file(self, data: bytes) -> None:
        weights = await read_torch_file(Blob(data), SourceSettings())
        parse_header(weights.header_bytes, weights.data_bytes)
        for segment in weights.segments:
            length = min(segment.length, 4096)
            assert len(await segment.blob.read(segment.offset, length)) == length


def header_input(random: Random, tensors: list[seeds.Entry]) -> bytes:
    """Return a changed header: consistent around changed tensors, or changed as JSON."""
    if random.random() < 0.6:
        tensors = seeds.changed(random, tensors)
        if random.random() < 0.7:
            return seeds.header(tensors)
    return mutate.text(random, seeds.header(tensors), ["BF16", [4, 32], [0, 256], [0, 0]])


def config_input(random: Random, raw: bytes) -> bytes:
    """Return a changed adapter_config.json."""
    return mutate.text(
        random, raw, ["LORA", "all", True, {}, [], {"q_proj": 4}, ["lm_head"], "gaussian"]
    )


TARGETS: dict[str, type[Target]] = {
    "header": Header,
    "config": Config,
    "layout": Layout,
    "frames": Frames,
    "stage": Stage,
    "pickle": Pickle,
}
SCHEDULE = (
    ["header"] * 30
    + ["config"] * 25
    + ["layout"] * 20
    + ["frames"] * 15
    + ["pickle"] * 8
    + ["stage"] * 2
)
"""Which target input number i is for with `--target all`: a transfer costs more than a parse."""
