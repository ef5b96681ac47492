"""The digest names the content that the engine computes with, and nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from format_builders import config_text, pair, source
from format_cases import canonical_data, plan, profile
from lorafleet.digest import canonical_digest
from lorafleet.layout import CanonicalLayout, CanonicalModule, PackedTensor
from lorafleet.profile import ModuleKind


def test_the_digest_is_the_documented_text_hashed() -> None:
    modules = {
        "b": CanonicalModule(
            ModuleKind.EXPERTS,
            2,
            (1.0, 0.5),
            PackedTensor(9, (2, 2, 3)),
            PackedTensor(8, (2, 4, 2)),
        ),
        "a": CanonicalModule(
            ModuleKind.LINEAR, 1, 2.0, PackedTensor(0, (1, 3)), PackedTensor(6, (4, 1))
        ),
    }
    text = (
        '{"dtype":"bfloat16","format":1,"modules":{'
        '"a":{"a":[[1,3],"aa"],"b":[[4,1],"ab"],"kind":"linear","rank":1,"scaling":2.0},'
        '"b":{"a":[[2,2,3],"ba"],"b":[[2,4,2],"bb"],"kind":"experts","rank":2,"scaling":[1.0,0.5]}}}'
    )
    digest = canonical_digest("bfloat16", modules, {"a": ("aa", "ab"), "b": ("ba", "bb")})
    assert digest == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def digest_of(tensors: dict[str, Any], dtype: str = "F32", **config: Any) -> str:
    adapter = source(tensors, config_text(**config), dtype)
    layout = plan(adapter, replace(profile("qwen3-dense"), dtype="bfloat16"))
    data = canonical_data(adapter, layout)
    hashes = {name: tensor_hashes(layout, name, data) for name in layout.modules}
    return canonical_digest(layout.dtype, layout.modules, hashes)


def tensor_hashes(layout: CanonicalLayout, name: str, data: bytearray) -> tuple[str, str]:
    def digest(packed: PackedTensor) -> str:
        size = 2
        for dimension in packed.shape:
            size *= dimension
        return hashlib.sha256(data[packed.offset : packed.offset + size]).hexdigest()

    module = layout.modules[name]
    return digest(module.a), digest(module.b)


def test_order_names_and_source_dtype_do_not_matter_but_values_and_scaling_do() -> None:
    q = "model.layers.0.self_attn.q_proj"
    tensors = pair(q, 4, 256, 256) | pair("model.layers.1.self_attn.q_proj", 4, 256, 256)
    coarse = {name: array.astype("float16") for name, array in tensors.items()}
    wanted = digest_of(coarse)
    assert digest_of(dict(reversed(coarse.items()))) == wanted
    assert digest_of({f"_orig_mod.{name}": array for name, array in coarse.items()}) == wanted
    assert digest_of(coarse, "F16") == wanted
    assert digest_of(coarse, r=4, alpha=4, use_rslora=True) == wanted
    assert digest_of(coarse, alpha=9) != wanted
    changed = {name: array.copy() for name, array in coarse.items()}
    changed[f"base_model.model.{q}.lora_A.weight"][3, 255] += 1
    assert digest_of(changed) != wanted


def test_the_revision_file_has_the_documented_fields() -> None:
    adapter = source(pair("model.layers.0.self_attn.q_proj", 4, 256, 256), config_text())
    layout = plan(adapter, profile("qwen3-dense"))
    proofs = {"model.layers.0.self_attn.q_proj": (255, (1 << 64) - 1)}
    hashes = {"model.layers.0.self_attn.q_proj": ("aa", "bb")}
    revision = layout.revision_json("sha256:ab", 2 << 20, 4 << 20, proofs, hashes)
    assert json.loads(json.dumps(revision)) == {
        "format": 1,
        "digest": "sha256:ab",
        "dtype": "bfloat16",
        "arena": "arena",
        "extent_offset": 2 << 20,
        "extent_bytes": 4 << 20,
        "data_offset": (2 << 20) + len(layout.image_header),
        "rank": 4,
        "modules": {
            "model.layers.0.self_attn.q_proj": {
                "kind": "linear",
                "rank": 4,
                "scaling": 2.0,
                "a": {"offset": 0, "shape": [4, 256]},
                "b": {"offset": 2048, "shape": [256, 4]},
                "proof": {"a": "00000000000000ff", "b": "ffffffffffffffff"},
                "sha256": {"a": "aa", "b": "bb"},
            }
        },
    }
    assert len(layout.image_header) % 256 == 0
