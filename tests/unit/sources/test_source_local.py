"""A folder on a person's own disk, as a trainer leaves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import SourceNotFound
from lorafleet_operator.inspection.local import LocalSource
from lorafleet_operator.sources.bounds import SourceSettings
from source_builders import adapter, data_of, read_all, write

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_folder_of_checkpoints_names_them(tmp_path: Path) -> None:
    for step in range(5, 11):
        write(tmp_path / f"checkpoint-{step}", adapter())
    write(tmp_path / "runs", {"events": b""})
    with pytest.raises(SourceNotFound) as caught:
        await LocalSource(tmp_path, SourceSettings()).resolve()
    assert str(caught.value) == (
        f"adapter_config.json not found in {tmp_path}; there is one in "
        "checkpoint-10, checkpoint-5, checkpoint-6, checkpoint-7 and 2 more"
    )


async def test_one_checkpoint_is_read_beside_what_a_trainer_leaves_there(tmp_path: Path) -> None:
    files = {**adapter(), "optimizer.pt": b"PK", "rng_state.pth": b"PK", "README.md": b""}
    write(tmp_path / "checkpoint-5", {**files, "training_args.bin": b"PK"})
    found = await LocalSource(tmp_path / "checkpoint-5", SourceSettings()).resolve()
    assert await read_all(found) == data_of(files["adapter_model.safetensors"])
