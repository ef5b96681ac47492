"""The pure parts of bench/gpu: what is measured is what is said."""

from __future__ import annotations

import json
import os
import sys
import time
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
    monkeypatch.syspath_prepend(str(BENCH.parent))
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


def test_what_changed_is_told_with_its_first_and_last_moment() -> None:
    from watching import spans

    samples: list[tuple[float, dict[str, Any]]] = [
        (0.0, {"bytes": 0, "ready": "False"}),
        (0.2, {"bytes": 0, "ready": "False"}),
        (0.4, {"bytes": 7}),
        (0.6, {"bytes": 7, "ready": "True", "new": 1}),
        (0.8, {"bytes": 9, "ready": "True", "new": 1}),
    ]
    assert spans(samples) == {
        "bytes": [0.4, 0.8, 0, 9],
        "ready": [0.6, 0.6, "False", "True"],
        "new": [0.6, 0.6, None, 1],
    }
    assert spans([]) == {}


def test_a_watch_has_what_another_process_prints_while_it_lasts() -> None:
    from watching import Watch

    lines = "import json, time\nwhile True:\n print(json.dumps([time.monotonic(), {'a': 1}]), flush=True)"
    lines += "\n time.sleep(0.01)"
    with Watch([sys.executable, "-c", lines], {"this": os.getpid()}) as watch:
        time.sleep(0.1)
        watch.note("noted")
    first, *_, last = watch.samples
    assert first[0] <= 0.0 < last[0]
    assert last[1] == {"a": 1}
    assert watch.moments["noted"]["seconds"] >= 0.1
    assert watch.moments["noted"]["this"] >= 0.0


def test_metrics_are_chosen_by_name_and_keep_their_labels() -> None:
    from sampling import chosen

    text = '# HELP a b\n# TYPE a gauge\na{state="x"} 1\na{state="y"} 2.5\nab 3\nc 4\n'
    assert chosen(text, {"a", "c"}) == {'a{state="x"}': 1.0, 'a{state="y"}': 2.5, "c": 4.0}


def test_cpu_time_counts_for_the_nearest_named_process_above() -> None:
    from watching import attributed

    ticks = os.sysconf("SC_CLK_TCK")
    processes = {
        1: (0, 99 * ticks),
        10: (1, 5 * ticks),  # the trainer, which started all the others
        20: (10, 3 * ticks),  # the operator
        21: (20, 2 * ticks),
        22: (21, 1 * ticks),
        30: (10, 7 * ticks),
    }
    found = attributed({"trainer": 10, "operator": 20, "gone": 77}, processes)
    assert found == {"trainer": 12.0, "operator": 6.0, "gone": 0.0}


def test_the_cpu_time_of_this_process_grows_with_what_it_does() -> None:
    from watching import cpu_seconds

    before = cpu_seconds({"me": os.getpid()})["me"]
    while cpu_seconds({"me": os.getpid()})["me"] <= before:
        sum(range(100_000))


def test_ways_are_compared_revision_by_revision() -> None:
    from push_rows import Row, compare

    rows = [
        Row("lorafleet", "first", 1.0, 4.0, 5.0, 100),
        Row("lorafleet", "a tenth changed", 1.0, 1.0, 1.0, 10),  # theirs was not measured
        Row("stock", "first", 2.0, 8.0, 4.0, 50),
    ]
    assert compare(rows) == {
        "first: in_step": 0.5,
        "first: served": 0.5,
        "first: answered": 1.25,
        "first: moved_bytes": 2.0,
    }
