"""What an earlier try or push brought: it counts if it is right still."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lorafleet.errors import TransferInterrupted
from lorafleet_operator.push import bulk
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.sources.pushed import PART
from spool_builders import end, push, read, revision, spool

if TYPE_CHECKING:
    from pathlib import Path

SMALL = tuple(bytes([number]) * 300 for number in range(60))


@pytest.mark.parametrize("wrong", [None, 0, 17, 59])
def test_what_a_broken_push_brought_counts_up_to_the_first_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int | None
) -> None:
    """Looked at in groups of a few, side by side: what is right behind the damage counts not."""
    monkeypatch.setattr(bulk, "_GROUP_BYTES", 1000)
    there, tensors = spool(tmp_path), (*SMALL, b"last")
    end(there, "t/a", push(there, "t/a", tensors, set(), stop=60))
    (part,) = (tmp_path / "t/a/data").glob(f"*{PART}")
    if wrong is not None:
        with part.open("r+b") as file:
            file.seek(wrong * 300 + 7)
            file.write(b"?")
    again = Incoming(there, "t/a", revision(tensors))
    again.open(set())
    assert again.missing == list(range(60 if wrong is None else wrong, 61))
    assert part.stat().st_size == 300 * again.missing[0]
    for index in again.missing:
        again.write(index, 0, tensors[index])
    again.commit()
    end(there, "t/a", again)
    assert read(tmp_path, "t/a", revision(tensors).revision) == b"".join(tensors)


@pytest.mark.parametrize("wrong", [0, 16, 19])
def test_of_what_moves_nothing_counts_from_the_first_damage_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Twenty of sixty are of use still, and move: what moved before the damage need not move again."""
    monkeypatch.setattr(bulk, "_GROUP_BYTES", 1000)
    there = spool(tmp_path)
    push(there, "t/a", SMALL, set())
    (old,) = (tmp_path / "t/a/data").iterdir()
    with old.open("r+b") as file:
        file.seek(wrong * 300)
        file.write(b"?")
    new = (*SMALL[:20], b"new")
    with pytest.raises(TransferInterrupted, match=r"is damaged on disk: push it again$"):
        push(there, "t/a", new, set())
    again = Incoming(there, "t/a", revision(new))
    again.open(set())
    assert again.missing == list(range(wrong, 20)), "the file with the damage is gone"
    for index in again.missing:
        again.write(index, 0, new[index])
    again.commit()
    end(there, "t/a", again)
    assert read(tmp_path, "t/a", revision(new).revision) == b"".join(new)


def test_a_damaged_copy_is_asked_for_again_when_it_would_be_moved(tmp_path: Path) -> None:
    there = spool(tmp_path)
    old = tuple(bytes([n]) * 1000 for n in range(10))
    push(there, "t/a", old, set())
    (file,) = (tmp_path / "t/a/data").iterdir()
    with file.open("r+b") as damaged:
        damaged.seek(500)
        damaged.write(b"?")
    new = (old[0], *(bytes([n]) * 1000 for n in range(20, 29)))
    with pytest.raises(TransferInterrupted, match="damaged on disk"):
        push(there, "t/a", new, set())
    push(there, "t/a", new, set())
    assert read(tmp_path, "t/a", revision(new).revision) == b"".join(new)
