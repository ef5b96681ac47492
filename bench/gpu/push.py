"""A trainer on the GPU pushes 6.29 GiB, beside what it does without: files in tmpfs and a load call.

    PYTHONPATH=engine_sidecar:operator:protos:tests:$PYTHONPATH python bench/gpu/push.py [--out FOLDER]

Holds the adapter as a state dict on the GPU and brings it to a vLLM beside it, by `push_later` through
an API server, the operator and a sidecar, then by safetensors files and `/v1/load_lora_adapter` of the
same vLLM. Writes push.json (docs/gpu.md says what each figure is), and beside it push-samples.jsonl
and push-logs.txt. Needs about 105 GiB of GPU memory, and kube-apiserver and etcd in KUBEBUILDER_ASSETS.
LORAFLEET_BENCH_SITE: a folder with packages for all but vLLM, as the operator's image has its own.
LORAFLEET_BENCH_SHAPE=dense tries the same lines on a machine without a GPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
SITE = os.environ.get("LORAFLEET_BENCH_SITE")
sys.path[1:1] = [
    *(str(ROOT / each) for each in ("tests", "hack", "bench")),
    *([SITE] if SITE else []),
]

import accelerator
import record
import shapes
import torch
from lorafleet.header import parse_header
from lorafleet.push.content import from_tensors
from lorafleet.push.tensors import read
from process_stacks import profiled
from push_fleet import PushFleet, start
from push_rows import Row, compare
from safetensors.torch import save_file
from sampling import PERIOD
from server import BASE
from staging import peft_config, peft_names, random_values
from watching import Watch, spans

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST, TENTH, ALL = "first", "a tenth changed", "all changed"
WAIT_SECONDS = 150.0


@dataclass
class Adapter:
    """What is trained: tensors of chance under the names of PEFT's files, each with memory of its own."""

    modules: list[shapes.Module]

    def __post_init__(self) -> None:
        self.tensors = {
            name: random_values(one)
            for module in self.modules
            for side, shape in (("A", module.a), ("B", module.b))
            for name, one in peft_names(module, side, shape)
        }
        self.config = {
            **peft_config(self.modules),
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": BASE,
        }
        self.bytes = sum(module.nbytes for module in self.modules)
        accelerator.synchronize()

    def change(self, turns: range) -> None:
        """Give new values to one tensor of ten for each of `turns`, small and large ones by turns."""
        by_size = sorted(self.tensors.values(), key=torch.numel)
        for turn in turns:
            for tensor in by_size[turn::10]:
                tensor.normal_(std=0.02)
        accelerator.synchronize()

    def arrives(self) -> bool:
        """Whether what is copied for a push has the bits of the tensors, for a hundredth of them."""
        some = dict(sorted(self.tensors.items())[::100])
        content = from_tensors(some, self.config, adapter="default")
        found = [hashlib.sha256() for _ in some]
        for index, piece in read(content.tensors):
            found[index].update(piece)
        names = [each.name for each in parse_header(content.header).tensors]
        want = [some[name].cpu().view(torch.uint8).numpy().tobytes() for name in names]
        return [each.digest() for each in found] == [hashlib.sha256(each).digest() for each in want]

    def save(self, folder: Path) -> Path:
        """Write what `save_pretrained` writes."""
        folder.mkdir(exist_ok=True)
        file = folder / "adapter_model.safetensors"
        save_file(self.tensors, file, metadata={"format": "pt"})
        (folder / "adapter_config.json").write_text(json.dumps(self.config, indent=2))
        return file


@dataclass
class Bench:
    """The fleet of one engine, and what was found so far."""

    fleet: PushFleet
    figures: record.Record
    rows: list[Row] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def attempt(self, what: str, do: Callable[[], None]) -> None:
        """Do it; a failure is a figure too, and no reason to leave out what comes next."""
        self.figures.say(f"begins: {what}")
        try:
            do()
        except Exception as error:
            self.failures[what] = f"{type(error).__name__}: {error}"[:2000]
            self.figures.put(failures=self.failures)

    def bring(self, way: str, what: str, adapter: Adapter) -> None:
        """Bring a revision by one of the two ways, and keep its row."""
        do = {"lorafleet": self.push, "stock": self.stock}[way]
        self.attempt(f"{way}, {what}", lambda: self.keep(do(what, adapter)))

    def push(self, what: str, adapter: Adapter, name: str = "policy") -> Row:
        """Push beside the training, wait and ask; keeps what went on meanwhile."""
        served_name = f"{self.fleet.chain.namespace}/{name}"
        watch = Watch(self.fleet.sampling(name), self.fleet.pids)
        try:
            with watch:
                pending = self.fleet.trainer.push_later(
                    adapter.tensors,
                    config=adapter.config,
                    name=name,
                    base_model=BASE,
                    pool="pool",
                    progress=watch.progress,
                )
                assert pending is not None
                watch.note("copied")
                revision = pending.revision(WAIT_SECONDS)
                watch.note("committed")
                revision.wait(timeout=WAIT_SECONDS)
                watch.note("ready")
                self.fleet.server.complete(served_name, 1)
                watch.note("answered")
                time.sleep(2 * PERIOD)  # what is told late is seen too
        finally:
            self._tell(what, watch)
        at = {moment: found["seconds"] for moment, found in watch.moments.items()}
        ours = (at["copied"], at["ready"], at["answered"], revision.sent_bytes)
        return Row("lorafleet", what, *ours)

    def _tell(self, what: str, watch: Watch) -> None:
        went = {"moments": watch.moments, "changes": spans(watch.samples)}
        self.figures.put(**{f"push: {what}": went})
        with self.figures.path.with_name("push-samples.jsonl").open("a") as file:
            file.writelines(json.dumps([what, *each]) + "\n" for each in watch.samples)

    def stock(self, what: str, adapter: Adapter, name: str = "stock") -> Row:
        """Save in the training step, let vLLM load that, ask."""
        began = time.perf_counter()
        file = adapter.save(self.fleet.files / name)
        saved = time.perf_counter() - began
        body = {"lora_name": name, "lora_path": str(file.parent), "load_inplace": True}
        self.fleet.server.api("/v1/load_lora_adapter", **body)
        served = time.perf_counter() - began
        self.fleet.server.complete(name, 1)
        return Row("stock", what, saved, served, time.perf_counter() - began, file.stat().st_size)

    def keep(self, row: Row) -> None:
        """Take the row into the figures."""
        self.rows.append(row)
        self.figures.say(str(row))
        self.figures.put(rows=[asdict(row) for row in self.rows], ratios=compare(self.rows))


def run(bench: Bench, shape: shapes.Shape) -> None:
    """Do all that is measured, the most wanted first."""
    small = Adapter(shape.adapter(8, mlp=False))
    # The first of each kind compiles kernels and makes connections.
    bench.attempt("a small push", lambda: bench.push("small", small, "small"))
    bench.attempt("a small file", lambda: bench.stock("small", small, "small"))
    bench.attempt(
        "its end", lambda: bench.fleet.server.api("/v1/unload_lora_adapter", lora_name="small")
    )
    adapter = Adapter(shape.adapter())
    bench.figures.put(adapter_bytes=adapter.bytes, tensors=len(adapter.tensors))
    bench.attempt("copies", lambda: bench.figures.put(copies_equal=adapter.arrives()))
    bench.bring("lorafleet", FIRST, adapter)
    adapter.change(range(1))
    bench.bring("lorafleet", TENTH, adapter)
    bench.bring("stock", FIRST, adapter)
    adapter.change(range(1, 2))
    bench.bring("stock", TENTH, adapter)
    shutil.rmtree(bench.fleet.files / "stock", ignore_errors=True)
    adapter.change(range(10))
    # Beside the rows: a profiler costs time.
    ours = {name: bench.fleet.pids[name] for name in ("trainer", "operator", "sidecar")}
    with profiled(ours, bench.figures.path.parent):
        bench.attempt(f"lorafleet, {ALL}", lambda: _whole(bench, adapter))


def _whole(bench: Bench, adapter: Adapter) -> None:
    bench.figures.put(all_changed=asdict(bench.push(ALL, adapter)))


def _join_logs(root: Path, target: Path) -> None:
    """Put the end of each log below `root` into one file."""
    with target.open("wb") as whole:
        for log in sorted(root.rglob("*.log")):
            whole.write(f"\n===== {log.relative_to(root)}\n".encode())
            whole.write(log.read_bytes()[-2 << 20 :])


def main() -> int:
    """Run everything; 1 if something of it failed."""
    name, shape = shapes.chosen()
    figures = record.opened("push", name)
    root = Path(tempfile.mkdtemp(prefix="lorafleet-push-"))
    memory = Path(tempfile.mkdtemp(prefix="lorafleet-push-", dir="/dev/shm"))
    try:
        with ExitStack() as stack:
            bench = Bench(start(stack, root, memory, shape, figures), figures)
            run(bench, shape)
            figures.say("done; ending what was started")
    finally:
        _join_logs(root, figures.path.with_name("push-logs.txt"))
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)
    return int(bool(bench.failures))


if __name__ == "__main__":
    sys.exit(main())
