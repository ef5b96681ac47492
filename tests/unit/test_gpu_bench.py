"""The pure parts of bench/gpu: what is measured is what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import host_memory
import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench" / "gpu"
SMAPS = """\
7f0000000000-7f0000400000 r--s 00000000 00:19 42                         /dev/shm/v/arena
Size:               4096 kB
Rss:                1024 kB
Pss:                 512 kB
Anonymous:             0 kB
VmFlags: rd mr mw me ms sd
7f0000400000-7f0000800000 r--s 00400000 00:19 42                         /dev/shm/v/arena
Rss:                 512 kB
Pss:                 256 kB
7f1000000000-7f1000100000 rw-p 00000000 00:00 0
Rss:                  64 kB
7f1000200000-7f1000300000 rw-p 00000000 00:00 0                          [heap]
Rss:                  36 kB
"""
STATUS = "Name:\tpython\nVmLck:\t      12 kB\nVmRSS:\t    2048 kB\nThreads:\t4\n"


@pytest.fixture(autouse=True)
def _bench_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


def test_the_papers_shape_is_the_one_of_the_figures() -> None:
    from shapes import SHAPES

    shape = SHAPES["paper"]
    modules = shape.adapter()
    tensors = sum(2 * (module.a[0] if module.kind == "experts" else 1) for module in modules)
    assert tensors == 37_248
    assert round(shape.adapter_bytes / 2**30, 2) == 6.29
    assert shape.layer_bytes * shape.layers == shape.adapter_bytes
    experts = sum(module.nbytes for module in modules if module.kind == "experts")
    assert shape.expert_bytes_by_formula == experts
    assert all(
        module.kind == "linear" and module.rank == 8 for module in shape.adapter(8, mlp=False)
    )


def test_a_dense_shape_has_no_experts() -> None:
    from shapes import SHAPES

    shape = SHAPES["dense"]
    assert "num_experts" not in shape.config()
    assert {module.kind for module in shape.adapter()} == {"linear"}
    assert len(shape.adapter()) == 7 * shape.layers


def test_percentiles_are_values_that_were_seen() -> None:
    import gaps

    assert gaps.percentile([4, 1, 3, 2], 0.5) == 2
    assert gaps.percentile(list(range(1, 101)), 0.99) == 99
    assert gaps.percentile([7.0], 0.99) == 7.0
    assert gaps.gaps([1.0, 1.5, 4.0]) == [0.5, 2.5]
    assert gaps.summary([]) == {"count": 0}
    assert gaps.summary([0.001, 0.002, 0.003]) == {
        "count": 3,
        "p50_ms": 2.0,
        "p99_ms": 3.0,
        "max_ms": 3.0,
    }


def test_mappings_of_one_file_are_added_up() -> None:
    maps = host_memory.mapped(SMAPS)
    assert maps["/dev/shm/v/arena"] == {
        "Size": 4096 * 1024,
        "Rss": 1536 * 1024,
        "Pss": 768 * 1024,
        "Anonymous": 0,
    }
    assert host_memory.private(maps, but=Path("/dev/shm/v")) == 100 * 1024
    later = host_memory.mapped(SMAPS.replace("64 kB", "9064 kB"))
    assert host_memory.grown(maps, later) == {"anonymous": 9000 * 1024}


def test_this_processs_own_memory_can_be_read(tmp_path: Path) -> None:
    import mmap

    file = tmp_path / "file"
    file.write_bytes(b"x" * 65536)
    with file.open("rb") as opened:
        mapping = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    assert sum(mapping[::4096]) > 0
    assert host_memory.of_process()[str(file)]["Rss"] == 65536
    mapping.close()
    assert host_memory.status()["VmRSS"] > 1 << 20
    assert host_memory.available() > 0


def test_status_lines_are_bytes() -> None:
    assert host_memory.fields(STATUS) == {"VmLck": 12 * 1024, "VmRSS": 2048 * 1024}


FIGURES: dict[str, Any] = {
    "stock_s": 18.0,
    "device_s": 4.5,
    "device_rebuild_s": 0.14,
    "direct_s": 0.13,
    "direct_rebuild_s": 0.129,
    "copy_s": 0.125,
    "longest_step_ms_stock": 18000.0,
    "longest_step_ms_device": 900.0,
    "longest_step_ms_direct": 9.0,
    "longest_step_ms_quiet": 7.0,
    "adapter_bytes": 6_756_000_000,
    "versions": {"vllm": "0.26.0"},
    "date": "2026-11-29T12:00:00+00:00",
}


def test_the_plot_is_a_picture_with_longer_bars_for_longer_loads(tmp_path: Path) -> None:
    import plot

    picture = plot.draw(FIGURES)
    blue, grey = (47, 126, 216), (154, 160, 166)
    counts = {colour: count for count, colour in picture.getcolors(1 << 20)}
    assert counts[grey] > 2 * counts[blue] / 3 > 0
    picture.save(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_committed_results_have_the_keys_that_are_promised() -> None:
    wanted = {
        *("stock_s", "device_s", "device_rebuild_s", "direct_s", "direct_rebuild_s", "copy_s"),
        *("temp_peak_bytes", "temp_kept_bytes", "layer_bytes", "host_bytes_ratio"),
        *("longest_step_ms_quiet", "longest_step_ms_direct"),
        *("p99_gap_ms_quiet", "p99_gap_ms_direct", "versions", "date"),
    }
    results = BENCH / "results" / "load.json"
    if results.exists():
        assert wanted <= json.loads(results.read_text()).keys()
