"""The handed cases about files, read through a volume."""

from pathlib import Path

import pytest
from lorafleet.errors import InvalidAdapter, LorafleetError, SourceNotFound
from lorafleet_operator.sources.base import ResolvedAdapter
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source
from source_builders import data_of, read_all, read_tensors

CASES = Path(__file__).parents[1] / "cases"


async def resolved(case: str, tmp_path: Path) -> ResolvedAdapter:
    (tmp_path / "team-a").mkdir(exist_ok=True)
    root = tmp_path / "team-a" / "cases"
    if not root.exists():
        # The folder of a claim is a mount, never a link: a copy stands for it.
        copy(CASES / case.partition("/")[0], root / case.partition("/")[0])
    source = open_source(
        {"persistentVolumeClaim": {"claimName": "cases", "path": case}},
        namespace="team-a",
        name="sql",
        settings=SourceSettings(volume_root=tmp_path),
        secret=None,
    )
    return await source.resolve()


def copy(folder: Path, to: Path) -> None:
    to.mkdir(parents=True)
    for item in folder.iterdir():
        if item.is_symlink():
            (to / item.name).symlink_to(item.readlink())
        elif item.is_dir():
            copy(item, to / item.name)
        else:
            (to / item.name).write_bytes(item.read_bytes())


@pytest.mark.parametrize(
    ("case", "error", "message"),
    [
        (
            "d45-bin-unsafe-pickle",
            InvalidAdapter,
            "unsafe pickle: adapter_model.bin refers to posix.getcwd",
        ),
        (
            "d46-truncated-download",
            InvalidAdapter,
            "adapter_model.safetensors is incomplete (have 10256 bytes, header wants 15384)",
        ),
        (
            "d48-no-tensors",
            InvalidAdapter,
            "no LoRA tensors in adapter_model.safetensors",
        ),
        (
            "d51-config-missing",
            SourceNotFound,
            "adapter_config.json not found in pvc://team-a/cases/d51-config-missing",
        ),
    ],
)
async def test_broken_files_are_refused_in_one_line(
    case: str, error: type[LorafleetError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error) as caught:
        await resolved(case, tmp_path)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("case", "tensors", "normalized"),
    [
        ("d42-sharded-with-index", 16, "one adapter_model.safetensors with 16 tensors"),
        ("d44-bin-weights", 4, "adapter_model.safetensors"),
        ("d54-hf-cache-symlinks/snapshots/0123abcd", 8, "plain files staged"),
    ],
)
async def test_other_layouts_are_one_plain_adapter(
    case: str, tensors: int, normalized: str, tmp_path: Path
) -> None:
    found = await resolved(case, tmp_path)
    assert len(await read_tensors(found)) == tensors
    assert len(found.normalized) == 1
    assert normalized in found.normalized[0]


async def test_merged_shards_are_their_data_in_the_order_of_their_names(tmp_path: Path) -> None:
    found = await resolved("d42-sharded-with-index", tmp_path)
    shards = sorted((CASES / "d42-sharded-with-index").glob("*.safetensors"))
    assert await read_all(found, 1000) == b"".join(data_of(file.read_bytes()) for file in shards)


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.glob("[dm]*-*")))
async def test_every_handed_case_is_read_or_refused_in_one_line(case: str, tmp_path: Path) -> None:
    """What a source refuses is about files; all else is for preflight to judge."""
    refused = {"d45-bin-unsafe-pickle", "d46-truncated-download", "d48-no-tensors"}
    refused |= {"d51-config-missing", "d54-hf-cache-symlinks"}
    if case in refused:
        with pytest.raises(LorafleetError) as caught:
            await resolved(case, tmp_path)
        assert "\n" not in str(caught.value)
    else:
        assert await read_tensors(await resolved(case, tmp_path))
