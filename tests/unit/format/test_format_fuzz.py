"""Whatever names, shapes and configs a source has, the plan is whole or refused in one line."""

from __future__ import annotations

from typing import Any

from format_builders import PREFIX, config_text, header_text
from format_cases import NUMPY, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from lorafleet.errors import AdapterRejected
from lorafleet.header import header_length, parse_header
from lorafleet.layout import CanonicalLayout, plan_layout
from lorafleet.peft_config import AdapterConfig
from lorafleet.profile import EngineProfile

ENGINES = [profile("qwen3-dense"), profile("qwen3-moe"), EngineProfile("tiny/qwen3-moe")]
SEGMENTS = st.sampled_from(
    [
        "model",
        "language_model",
        "_orig_mod",
        "module",
        "base_model",
        "layers",
        "0",
        "1",
        "9",
        "self_attn",
        "q_proj",
        "qkv_proj",
        "mlp",
        "experts",
        "shared_experts",
        "base_layer",
        "gate_up_proj",
        "down_proj",
        "gate_proj",
        "w1",
        "w2",
        "lm_head",
        "embed_tokens",
        "",
        "²",
    ]
)
TAILS = st.sampled_from(
    [
        "lora_A.weight",
        "lora_B.weight",
        "lora_A.default.weight",
        "lora_B.x",
        "lora_embedding_A",
        "lora_embedding_B",
        "lora_magnitude_vector",
        "weight",
        "lora_B.bias",
        "lora_",
        "lora_A",
    ]
)
LIKELY = st.sampled_from(
    [
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.mlp.experts",
        "model.layers.1.mlp.experts.base_layer",
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.mlp.experts.3.down_proj",
        "model.layers.0.mlp.experts.w1",
        "layers.0.mlp.experts.3.up_proj",
    ]
)
MODULES = LIKELY | st.lists(SEGMENTS, max_size=7).map(".".join)
SIZES = st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64, 256])
RANKS = st.sampled_from([1, 2, 4, 8])
SHAPES = st.lists(SIZES, max_size=4).map(tuple)
CONFIGS = st.fixed_dictionaries(
    {"r": RANKS, "base": st.just("tiny/qwen3-moe")},
    optional={
        "peft_version": st.sampled_from(["", "0.18.0", "0.19.1", "x", "9" * 30]),
        "target_parameters": st.lists(
            st.sampled_from(["mlp.experts.gate_up_proj", "mlp.experts.down_proj", ""])
        ),
        "rank_pattern": st.dictionaries(st.sampled_from(["experts.*", ".*", "q"]), RANKS),
        "use_rslora": st.booleans(),
    },
)


@st.composite
def adapters(draw: st.DrawFn) -> list[tuple[str, str, tuple[int, ...]]]:
    """Random keys and halves of modules, or (so that some get through) only whole pairs."""
    entries: dict[str, tuple[str, tuple[int, ...]]] = {}
    clean = draw(st.booleans())
    for _ in range(draw(st.integers(1, 2 if clean else 5))):
        module = draw(LIKELY if clean else MODULES)
        prefix = PREFIX if clean else draw(st.sampled_from([PREFIX, "", "module."]))
        dtype = draw(st.sampled_from(sorted(NUMPY)))
        if not clean and draw(st.booleans()):
            entries[f"{prefix}{module}.{draw(TAILS)}"] = (dtype, draw(SHAPES))
            continue
        rank, wide, out, experts = draw(st.tuples(SIZES, SIZES, SIZES, st.sampled_from([0, 1, 8])))
        stack = (experts,) if experts else ()
        entries[f"{prefix}{module}.lora_A.weight"] = (dtype, (*stack, rank, wide))
        entries[f"{prefix}{module}.lora_B.weight"] = (dtype, (*stack, out, rank))
    return [(name, dtype, shape) for name, (dtype, shape) in entries.items()]


@settings(deadline=None, max_examples=600)
@given(adapters(), CONFIGS, st.sampled_from(ENGINES))
def test_any_adapter_is_planned_whole_or_refused(
    entries: list[tuple[str, str, tuple[int, ...]]], config: dict[str, Any], engine: EngineProfile
) -> None:
    header = parse_header(header_text(entries))
    found = outcome(header, config_text(**config), engine)
    if isinstance(found, str):
        assert found.isprintable()
        assert len(found) < 1000
        return
    length = header_length(found.image_header[:8])
    image = parse_header(found.image_header[8:], found.data_bytes)
    assert len(found.image_header) == 8 + length
    assert len(image.tensors) >= 2 * len(found.modules)
    for module in found.modules.values():
        assert 1 <= module.rank <= (engine.max_lora_rank or 256)
    for copy in found.copies(0, header.data_bytes):
        assert copy.src_offset >= 0
        assert copy.dst_offset < found.data_bytes


def outcome(header: Any, config: bytes, engine: EngineProfile) -> CanonicalLayout | str:
    try:
        return plan_layout(
            header, AdapterConfig.parse(config, adapter="a/b"), engine, adapter="a/b"
        )
    except AdapterRejected as refused:
        return str(refused)
