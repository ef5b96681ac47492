"""What comes out of a PEFT model is what `save_pretrained` writes, whatever is around the model."""

from __future__ import annotations

import hashlib
import json
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import torch
from lorafleet.errors import InvalidAdapter
from lorafleet.peft_config import AdapterConfig
from lorafleet.push.content import Content, config_bytes, from_tensors
from lorafleet.push.fleet import content_of
from lorafleet.push.tensors import PIECE_BYTES, Bounce, GivenTensor
from peft import LoraConfig
from peft_trainers import file_of, peft_model, saved

if TYPE_CHECKING:
    from pathlib import Path

CONFIGS = {
    "plain": {},
    "patterns": {
        "rank_pattern": {"layers.1.self_attn.q_proj": 2, "v_proj": 8},
        "alpha_pattern": {"v_proj": 32},
        "target_modules": "all-linear",
    },
    "rslora": {"use_rslora": True, "target_modules": {"o_proj", "gate_proj", "down_proj"}},
    "float32": {"dtype": torch.float32},
}


def content(what: Any, config: Any = None, adapter: str = "default") -> Content:
    found = content_of(what, config, adapter)
    assert found is not None
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_gives_the_bytes_of_its_file(name: str, tmp_path: Path) -> None:
    model = peft_model(**CONFIGS[name])
    found = content(model)
    assert file_of(found) == saved(model, tmp_path)
    wanted = AdapterConfig.parse((tmp_path / "adapter_config.json").read_bytes(), adapter="a")
    have = AdapterConfig.parse(found.config, adapter="a")
    assert sorted(have.target_modules) == sorted(wanted.target_modules)
    for field in ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"):
        assert getattr(have, field) == getattr(wanted, field), field
    folder = content(tmp_path)
    assert file_of(folder) == file_of(found)
    assert folder.digests() == found.digests()


def test_wrappers_change_nothing(tmp_path: Path) -> None:
    model = peft_model()
    wanted = saved(model, tmp_path)
    compiled = torch.compile(model, backend="eager")
    assert file_of(content(compiled)) == wanted
    config = model.peft_config["default"]
    assert file_of(content(compiled.state_dict(), config)) == wanted
    model.base_model.model.model.layers[0] = torch.compile(
        model.base_model.model.model.layers[0], backend="eager"
    )
    assert file_of(content(model)) == wanted


def test_the_named_adapter_is_taken_and_no_other(tmp_path: Path) -> None:
    model = peft_model("policy")
    model.add_adapter("reference", LoraConfig(r=2, target_modules=["q_proj"]))
    wanted = saved(model, tmp_path, "policy")
    assert file_of(content(model, None, "policy")) == wanted
    assert file_of(content(model.state_dict(), {"r": 4}, "policy")) == wanted
    with pytest.raises(InvalidAdapter, match="has adapters policy, reference, not default"):
        content(model)
    with pytest.raises(InvalidAdapter, match="Linear is no PEFT model"):
        content(torch.nn.Linear(2, 2))


def test_one_adapter_has_one_config_whatever_the_order_of_its_sets() -> None:
    sets = [{"b", "a", "c"}, {"c", "b", "a"}]
    made = {config_bytes(LoraConfig(r=4, target_modules=each)) for each in sets}
    assert len(made) == 1
    assert json.loads(made.pop())["target_modules"] == ["a", "b", "c"]


def test_what_is_no_adapter_is_refused_in_one_line() -> None:
    name = "model.q_proj.lora_A.weight"
    whole = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(InvalidAdapter, match=r"lora_A.weight is int64, an adapter's tensors are"):
        content({name: whole}, {})
    with pytest.raises(InvalidAdapter, match="none of 1 tensors is a LoRA tensor"):
        content({"model.q_proj.weight": whole}, {})
    with pytest.raises(InvalidAdapter, match="need config="):
        content({name: whole.bfloat16()})
    with pytest.raises(InvalidAdapter, match="a list cannot be pushed"):
        content([])
    twice = {name: whole.half(), f"module.{name}": whole.half()}
    with pytest.raises(InvalidAdapter, match="two tensors of the state dict are"):
        content(twice, {})


class Read(GivenTensor):
    """Counts the bytes that are read."""

    count = 0

    def pieces(self) -> Any:
        for piece in super().pieces():
            Read.count += len(piece)
            assert len(piece) <= PIECE_BYTES
            yield piece


def test_tensors_that_share_memory_are_read_once() -> None:
    Read.count = 0
    bounce, shared = Bounce(), torch.randn(4, 64)
    named = {f"m.{n}.q_proj.lora_A.weight": shared for n in range(5)}
    named["m.5.q_proj.lora_A.weight"] = shared[:, ::2]
    found = from_tensors(
        named, {}, adapter="default", wrap=lambda name, each: Read(name, each, bounce)
    )
    digests = found.digests()
    assert Read.count == 4 * 64 * 4 + 4 * 32 * 4
    assert len(set(digests)) == 2


def test_tensors_are_hashed_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    both = threading.Barrier(2, timeout=60)

    class Met(Read):
        def pieces(self) -> Any:
            both.wait()
            yield from super().pieces()

    named = {f"m.{n}.q_proj.lora_A.weight": torch.full((4, 64), float(n)) for n in range(2)}
    found = from_tensors(
        named, {}, adapter="default", wrap=lambda name, each: Met(name, each, Bounce())
    )
    assert found.digests() == [hashlib.sha256(each.numpy()).digest() for each in named.values()]


@pytest.mark.parametrize("kind", ["rows", "columns", "one row"])
def test_large_tensors_are_read_in_pieces(kind: str) -> None:
    shape = (1, 24 << 20) if kind == "one row" else (3 << 10, 2 << 12)
    whole = np.arange(24 << 20, dtype=np.uint32).view(np.float32).reshape(shape)
    array = whole.T if kind == "columns" else whole
    given = torch.from_numpy(whole).T if kind == "columns" else torch.from_numpy(whole)
    for each in (array, given):
        tensor = Read("a.lora_A.weight", each, Bounce())
        found = np.empty(24 << 20, np.float32)
        memory, at = memoryview(found).cast("B"), 0
        tracemalloc.start()
        for piece in tensor.pieces():
            memory[at : at + len(piece)] = piece
            at += len(piece)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 3 * PIECE_BYTES
        assert np.array_equal(
            found.view(np.uint32), np.ascontiguousarray(array).reshape(-1).view(np.uint32)
        )


def test_arrays_of_every_type_of_an_adapter() -> None:
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64):
        array = np.arange(6).astype(dtype).reshape(2, 3)
        tensor = GivenTensor("a.lora_A.weight", array, Bounce())
        assert b"".join(map(bytes, tensor.pieces())) == array.tobytes()
