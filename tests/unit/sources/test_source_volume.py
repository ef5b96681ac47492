"""A folder of a volume: links, folders out of bounds, files that change."""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from lorafleet.errors import (
    AccessDenied,
    InvalidAdapter,
    LorafleetError,
    PathNotAllowed,
    SourceChanged,
    SourceNotFound,
)
from lorafleet_operator.sources.base import ResolvedAdapter
from lorafleet_operator.sources.bounds import SourceSettings
from lorafleet_operator.sources.registry import open_source
from source_builders import adapter, data_of, read_all, write

WEIGHTS = "adapter_model.safetensors"


@pytest.fixture
def claim(tmp_path: Path) -> Path:
    folder = tmp_path / "volumes" / "team-a" / "models"
    folder.mkdir(parents=True)
    return folder


async def resolved(
    claim: Path, path: str = "sql", count: list[int] | None = None
) -> ResolvedAdapter:
    source = open_source(
        {"persistentVolumeClaim": {"claimName": claim.name, "path": path}},
        namespace=claim.parent.name,
        name="sql",
        settings=SourceSettings(volume_root=claim.parent.parent),
        secret=None,
        on_read=(count if count is not None else []).append,
    )
    return await source.resolve()


async def refused(claim: Path, error: type[LorafleetError], path: str = "sql") -> str:
    with pytest.raises(error) as caught:
        await resolved(claim, path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_an_adapter_is_read_and_its_bytes_are_counted(claim: Path) -> None:
    files = adapter()
    write(claim / "sql", files)
    count: list[int] = []
    found = await resolved(claim, count=count)
    assert found.uri == "pvc://team-a/models/sql"
    before = sum(count)
    assert await read_all(found, 1000) == data_of(files[WEIGHTS])
    assert sum(count) - before == found.data_bytes
    os.utime(claim / "sql" / WEIGHTS, (1_000_000_000, 1_000_000_000))
    assert (await resolved(claim)).revision == "2001-09-09T01:46:40Z"
    assert found.normalized == ()


async def test_the_root_of_the_volume_can_be_the_folder(claim: Path) -> None:
    write(claim, adapter())
    assert (await resolved(claim, "")).uri == "pvc://team-a/models"


async def test_links_inside_the_volume_are_followed_to_plain_files(claim: Path) -> None:
    files = adapter()
    write(claim / "blobs", {"c0ffee": files[WEIGHTS], "feed": files["adapter_config.json"]})
    snapshot = claim / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (snapshot / WEIGHTS).symlink_to("../../blobs/c0ffee")
    (snapshot / "adapter_config.json").symlink_to("../../blobs/feed")
    (claim / "latest").symlink_to("snapshots/0123abcd")
    for path in ("snapshots/0123abcd", "latest"):
        found = await resolved(claim, path)
        assert await read_all(found) == data_of(files[WEIGHTS])
        assert found.normalized == ("links followed, plain files staged",)


async def test_links_that_a_copy_wrote_out_as_text_are_links(claim: Path) -> None:
    files = adapter()
    write(claim / "blobs", {"c0ffee": files[WEIGHTS], "feed": files["adapter_config.json"]})
    snapshot = claim / "snapshots" / "0123abcd"
    write(snapshot, {WEIGHTS: b"../../blobs/c0ffee", "adapter_config.json": b"../../blobs/feed\n"})
    found = await resolved(claim, "snapshots/0123abcd")
    assert await read_all(found) == data_of(files[WEIGHTS])
    assert found.normalized == ("links followed, plain files staged",)
    write(snapshot, {WEIGHTS: b"../../blobs/gone"})
    assert (
        await refused(claim, SourceNotFound, "snapshots/0123abcd")
        == "adapter_model.safetensors is a dangling link to ../../blobs/gone "
        "in pvc://team-a/models/snapshots/0123abcd"
    )
    write(snapshot, {WEIGHTS: b"../../../../blobs/gone"})
    assert "out of the volume" in await refused(claim, PathNotAllowed, "snapshots/0123abcd")


async def test_a_cache_of_the_hub_is_read_at_its_main_branch(claim: Path) -> None:
    files, commit = adapter(), "0123abcd" * 5
    cache = claim / "models--org--sql"
    write(cache / "blobs", {"c0ffee": files[WEIGHTS], "feed": files["adapter_config.json"]})
    snapshot = cache / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / WEIGHTS).symlink_to("../../blobs/c0ffee")
    (snapshot / "adapter_config.json").symlink_to("../../blobs/feed")
    write(cache / "refs", {"main": commit.encode()})
    found = await resolved(claim, "models--org--sql")
    assert found.uri == f"pvc://team-a/models/models--org--sql/snapshots/{commit}"
    assert await read_all(found) == data_of(files[WEIGHTS])
    await found.confirm()
    for wrong in (b"../../../other", b"", b"x" * 1000, b"0123abcd/../.."):
        write(cache / "refs", {"main": wrong})
        assert (
            await refused(claim, SourceNotFound, "models--org--sql")
            == "adapter_config.json not found in pvc://team-a/models/models--org--sql"
        )
    write(cache / "refs", {"main": b"feedface"})
    text = await refused(claim, SourceNotFound, "models--org--sql")
    assert text.endswith("/snapshots/feedface")


async def test_the_path_may_name_the_weights_file(claim: Path) -> None:
    files = adapter()
    write(claim / "sql", {"adapter_config.json": files["adapter_config.json"]})
    write(claim / "sql", {"my lora.safetensors": files[WEIGHTS]})
    found = await resolved(claim, "sql/my lora.safetensors")
    assert await read_all(found) == data_of(files[WEIGHTS])
    assert found.uri == "pvc://team-a/models/sql"
    text = await refused(claim, SourceNotFound, "sql/other.safetensors")
    assert text == "no other.safetensors in pvc://team-a/models/sql"


async def test_a_config_that_is_replaced_while_the_weights_are_read_is_noticed(claim: Path) -> None:
    write(claim / "sql", adapter())
    found = await resolved(claim)
    await read_all(found)
    await found.confirm()
    write(claim / "new", {"adapter_config.json": b"{}"})
    (claim / "new" / "adapter_config.json").replace(claim / "sql" / "adapter_config.json")
    with pytest.raises(SourceChanged, match=r"^adapter_config\.json in pvc://team-a/models/sql: "):
        await found.confirm()


async def test_a_dangling_link_names_its_target(claim: Path) -> None:
    write(claim / "sql", {"adapter_config.json": b"{}"})
    (claim / "sql" / WEIGHTS).symlink_to("../blobs/feedface")
    assert (
        await refused(claim, SourceNotFound)
        == "adapter_model.safetensors is a dangling link to ../blobs/feedface in "
        "pvc://team-a/models/sql"
    )


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "../../other/sql/adapter_config.json", "../" * 40 + "etc/passwd", "../.."],
)
async def test_a_link_out_of_the_volume_is_refused(claim: Path, target: str) -> None:
    write(claim.parent / "other" / "sql", adapter())
    write(claim / "sql", {WEIGHTS: adapter()[WEIGHTS]})
    (claim / "sql" / "adapter_config.json").symlink_to(target)
    text = await refused(claim, PathNotAllowed)
    assert "out of the volume" in text


async def test_a_linked_folder_out_of_the_volume_is_refused(claim: Path) -> None:
    write(claim.parent / "other" / "sql", adapter())
    (claim / "sql").symlink_to("../other/sql")
    assert "out of the volume" in await refused(claim, PathNotAllowed)


async def test_links_in_a_circle_end(claim: Path) -> None:
    (claim / "sql").mkdir()
    (claim / "sql" / "adapter_config.json").symlink_to("adapter_config.json")
    assert "passes more than 40 links" in await refused(claim, PathNotAllowed)


async def test_a_pipe_or_a_folder_is_no_file_and_does_not_block(claim: Path) -> None:
    (claim / "sql").mkdir()
    os.mkfifo(claim / "sql" / "adapter_config.json")
    assert "is not a plain file" in await refused(claim, PathNotAllowed)
    (claim / "sql" / "adapter_config.json").unlink()
    (claim / "sql" / "adapter_config.json").mkdir()
    assert "is not a plain file" in await refused(claim, PathNotAllowed)


async def test_what_is_missing_is_named(claim: Path) -> None:
    assert (
        await refused(claim, SourceNotFound)
        == "adapter_config.json not found in pvc://team-a/models/sql"
    )
    claim.rmdir()
    assert (
        await refused(claim, SourceNotFound) == "pvc://team-a/models/sql: the volume does not exist"
    )


async def test_a_file_of_the_wrong_type_in_the_path_is_not_found(claim: Path) -> None:
    (claim / "sql").write_bytes(b"")
    assert "adapter_config.json not found" in await refused(claim, SourceNotFound)


async def test_a_volume_that_the_operator_may_not_read_says_who_it_is(claim: Path) -> None:
    write(claim / "sql", adapter())
    claim.parent.chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root reads everything
    try:
        text = await refused(claim, AccessDenied)
    finally:
        os.seteuid(user)
        claim.parent.chmod(0o755)
    assert text.startswith("pvc://team-a/models/sql: the volume is not readable by the operator")


async def test_a_file_that_only_its_writer_may_read_is_named_with_its_mode(volume: Path) -> None:
    """As safetensors leaves it: `save_file` writes 0600 whatever the umask."""
    volume.chmod(0o755)
    claim = volume / "team-a" / "models"
    user = os.geteuid()
    mode = 0o600 if user == 0 else 0
    (write(claim / "sql", adapter()) / WEIGHTS).chmod(mode)
    if user == 0:
        os.seteuid(65534)  # root reads everything
    try:
        text = await refused(claim, AccessDenied)
        reader = os.geteuid()
    finally:
        os.seteuid(user)
    assert text == (
        f"pvc://team-a/models/sql/{WEIGHTS} is not readable by the operator "
        f"(mode {mode:04o}, uid {reader})"
    )


async def test_a_file_replaced_after_resolving_is_noticed(claim: Path) -> None:
    write(claim / "sql", adapter(seed=1))
    found = await resolved(claim)
    write(claim / "new", adapter(seed=2))
    (claim / "new" / WEIGHTS).replace(claim / "sql" / WEIGHTS)
    with pytest.raises(SourceChanged, match=r"adapter_model\.safetensors changed in pvc://team-a"):
        await found.read(0, 100)
    again = await resolved(claim)
    assert again.fingerprint != found.fingerprint
    assert await read_all(again) == data_of(adapter(seed=2)[WEIGHTS])


async def test_a_file_written_in_place_or_removed_is_noticed(claim: Path) -> None:
    write(claim / "sql", adapter())
    found = await resolved(claim)
    with (claim / "sql" / WEIGHTS).open("ab") as file:
        file.write(b"more")
    with pytest.raises(SourceChanged):
        await found.read(0, 100)
    (claim / "sql" / WEIGHTS).unlink()
    with pytest.raises(SourceChanged, match="is gone"):
        await found.read(0, 100)


@pytest.mark.parametrize("inside", [None, Path("good")], ids=["folder", "link"])
@pytest.mark.parametrize("first", ["inside", "outside"])
async def test_what_is_swapped_for_a_link_out_of_the_volume_never_leads_out(
    claim: Path, monkeypatch: pytest.MonkeyPatch, inside: Path | None, first: str
) -> None:
    """Before each step of a look and a read in turn another process swaps; all is read, or nothing."""
    outside = write(claim.parent / "other" / "sql", adapter(seed=9))
    sql, good = write(claim / "sql", adapter(seed=1)), claim / "good"
    order = (inside, outside) if first == "inside" else (outside, inside)
    steps = swapped_at = 0

    def put(target: Path | None) -> None:
        """Make `sql` a link to `target`, or the folder itself."""
        sql.unlink() if sql.is_symlink() else sql.rename(good)
        good.rename(sql) if target is None else sql.symlink_to(target)

    def stepping(call: Any) -> Any:
        def step(*args: Any, **named: Any) -> Any:
            nonlocal steps
            if steps == swapped_at:
                put(order[1])
            steps += 1
            return call(*args, **named)

        return step

    for name in ("open", "readlink"):
        monkeypatch.setattr(os, name, stepping(getattr(os, name)))
    contents = set()
    for swapped_at in itertools.count():
        put(order[0])
        steps = 0
        try:
            contents.add(await read_all(await resolved(claim)))
        except (PathNotAllowed, SourceChanged):
            contents.add(b"refused")
        if steps <= swapped_at:
            break  # all was over before it
    assert swapped_at >= 3
    assert contents == {b"refused", data_of(adapter(seed=1)[WEIGHTS])}


async def test_a_pickle_may_be_forbidden(claim: Path) -> None:
    write(claim / "sql", {"adapter_config.json": b"{}", "adapter_model.bin": b"PK\x03\x04"})
    source = open_source(
        {"allowPickle": False, "persistentVolumeClaim": {"claimName": "models", "path": "sql"}},
        namespace="team-a",
        name="sql",
        settings=SourceSettings(volume_root=claim.parent.parent),
        secret=None,
    )
    with pytest.raises(InvalidAdapter, match=r"adapter_model\.bin is a pickle"):
        await source.resolve()
