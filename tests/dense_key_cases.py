"""Names and shapes in dense adapters, as trainers and their tools write them."""

from __future__ import annotations

from typing import Any

import numpy as np
from dense_case import ATTENTION, Q0, V1, DenseCase, pairs, renamed, updates
from format_builders import PREFIX

PLAIN = pairs(*ATTENTION)
PLAIN_UPDATES = updates(PLAIN)
EMBEDDINGS = pairs("model.embed_tokens", "lm_head", Q0)


def _loads(*changes: tuple[str, str], said: tuple[str, ...] = (), **more: Any) -> DenseCase:
    return DenseCase(renamed(PLAIN, *changes), PLAIN_UPDATES, normalized=said, **more)


def _removed(prefix: str, keys: int = 8) -> str:
    return f"prefix removed: {prefix} ({keys} keys)"


def _moved(root: str, modules: int = 4) -> str:
    return f"{root}layers.N -> model.layers.N ({modules} modules)"


def _more(tensors: dict[str, Any], error: str, **more: Any) -> DenseCase:
    """A plain adapter with further tensors, which is refused."""
    return DenseCase(PLAIN | tensors, error=error, **more)


def _wrappers() -> dict[str, DenseCase]:
    fsdp, checkpoint, compiled = (
        "_fsdp_wrapped_module.",
        "_checkpoint_wrapped_module.",
        "_orig_mod.",
    )
    return {
        "FSDP, each layer": _loads(("layers.0.", f"layers.0.{fsdp}"), said=(_removed(fsdp, 4),)),
        "FSDP, whole": _loads(
            (PREFIX, fsdp + PREFIX), ("layers.1.", f"layers.1.{fsdp}"), said=(_removed(fsdp),)
        ),
        "activation checkpoints": _loads(
            (".self_attn.", f".{checkpoint}self_attn."), said=(_removed(checkpoint),)
        ),
        "DDP": _loads((PREFIX, f"module.{PREFIX}"), said=(_removed("module."),)),
        "DDP inside PEFT": _loads((PREFIX, f"{PREFIX}module."), said=(_removed("module."),)),
        "DDP of a compiled FSDP model": _loads(
            (PREFIX, f"module.{compiled}{PREFIX}"),
            ("layers.0.", f"layers.0.{fsdp}"),
            said=(_removed(fsdp, 4), _removed(compiled), _removed("module.")),
        ),
        "PEFT in PEFT": _loads((PREFIX, PREFIX * 2), said=(_removed(PREFIX),)),
        "compiled, and the same without": DenseCase(
            PLAIN | renamed(pairs(Q0), (PREFIX, compiled + PREFIX)), error=f"two tensors for {Q0}"
        ),
        "with PEFT's prefix, and the same without": DenseCase(
            PLAIN | renamed(pairs(Q0), (PREFIX, "")), error=f"two tensors for {Q0}"
        ),
        "two roots of one module": DenseCase(
            PLAIN | renamed(pairs(Q0), ("model.layers", "layers")), error=f"two tensors for {Q0}"
        ),
        "fused and the part of it": DenseCase(
            PLAIN | pairs("model.layers.0.self_attn.qkv_proj"), error=f"two tensors for {Q0}"
        ),
    }


def _adapter_names() -> dict[str, DenseCase]:
    default = renamed(PLAIN, (".weight", ".default.weight"))
    other = renamed(pairs(*ATTENTION, seed=5), (".weight", ".reference.weight"))
    said = ("lora_A.reference.weight -> lora_A.weight (8 keys)",)
    wanted = updates(renamed(other, (".reference", "")))
    names = (
        (".weight", ".a.weight"),
        ("embedding_A", "embedding_A.a"),
        ("embedding_B", "embedding_B.a"),
    )
    return {
        "a name of its own": _loads(
            (".weight", ".tenant_7.weight"),
            said=("lora_A.tenant_7.weight -> lora_A.weight (8 keys)",),
        ),
        "no .weight": _loads((".weight", ""), said=("lora_A -> lora_A.weight (8 keys)",)),
        "a name without .weight": _loads(
            (".weight", ".default"), said=("lora_A.default.weight -> lora_A.weight (8 keys)",)
        ),
        "two adapters": DenseCase(
            default | other, error="more than one adapter in one file (default, reference)"
        ),
        "one of two adapters": DenseCase(
            default | other, wanted, normalized=said, options=("--adapter-name", "reference")
        ),
        "another of two adapters": DenseCase(
            default | other,
            error="no adapter policy in the file (it holds default, reference)",
            options=("--adapter-name", "policy"),
        ),
        "embeddings with a name": DenseCase(
            renamed(EMBEDDINGS, *names),
            updates(EMBEDDINGS),
            normalized=("lora_A.a.weight -> lora_A.weight (6 keys)",),
        ),
    }


def _roots() -> dict[str, DenseCase]:
    head = pairs("lm_head", Q0)
    return {
        "one model. too many": _loads(
            ("model.layers", "model.model.layers"), said=(_moved("model.model."),)
        ),
        "no root at all": _loads((f"{PREFIX}model.", ""), said=(_moved(""),)),
        "one model. missing, lm_head right": DenseCase(
            renamed(head, ("model.layers", "layers")),
            updates(head),
            normalized=(_moved("", 1),),
        ),
        "wrapper of transformers 5": _loads(
            ("model.layers", "model.language_model.layers"),
            said=(_moved("model.language_model."),),
        ),
        "wrapper of transformers 4": DenseCase(
            renamed(
                head, ("model.layers", "language_model.model.layers"), ("lm_", "language_model.lm_")
            ),
            updates(head),
            normalized=(
                "language_model.lm_head -> lm_head (1 modules)",
                _moved("language_model.model.", 1),
            ),
        ),
        "towers": _more(
            {
                f"{PREFIX}vision_tower.encoder.layers.7.self_attn.q_proj.lora_{side}.weight": np.ones(
                    shape
                )
                for side, shape in (("A", (4, 32)), ("B", (32, 4)))
            },
            "(set spec.dropUnmatched: tower to drop 2 tensors)",
        ),
        "towers dropped": DenseCase(
            PLAIN
            | {
                f"{PREFIX}model.visual.blocks.0.attn.qkv.lora_{side}.weight": np.ones(shape)
                for side, shape in (("A", (4, 32)), ("B", (96, 4)))
            },
            PLAIN_UPDATES,
            normalized=("dropped 2 tensors of visual",),
            options=("--drop-unmatched", "tower"),
        ),
        "an unknown root": DenseCase(
            renamed(PLAIN, ("model.layers", "thinker.model.layers")),
            error=f"no LoRA tensors match the engine: 4 of 4 modules do not exist in the engine "
            f"(first: thinker.{Q0})",
        ),
        "a layer too many": DenseCase(
            renamed(PLAIN, ("layers.1.", "layers.2.")),
            error="model.layers.2.self_attn.q_proj is not in the engine (2 layers)",
        ),
        "a norm": DenseCase(
            renamed(PLAIN, ("layers.1.self_attn.q_proj", "layers.1.input_layernorm")),
            error="1 of 4 modules do not exist in the engine (first: model.layers.1.input_layernorm)",
        ),
        "none of the engine's": DenseCase(
            renamed(PLAIN, ("q_proj", "wq"), ("v_proj", "wv")),
            error="no LoRA tensors match the engine: 4 of 4 modules do not exist in the engine "
            "(first: model.layers.0.self_attn.wq)",
        ),
    }


def _strangers() -> dict[str, DenseCase]:
    """Tensors that are no LoRA factors."""

    def of(name: str, *shape: int) -> dict[str, Any]:
        return {PREFIX + name: np.ones(shape)}

    b1 = f"{PREFIX}{V1}.lora_B.weight"
    training = of(f"{Q0}.lora_velora_embed", 128) | of(
        f"{Q0}.lora_monteclora_sampler.expert_weights", 8
    )
    return {
        "DoRA's vectors": _more(of(f"{Q0}.lora_magnitude_vector", 256), "DoRA is not supported"),
        "lora_bias": _more(of(f"{Q0}.lora_B.bias", 256), "lora_bias is not supported"),
        "a bias": _more(of(f"{Q0}.bias", 256), "bias is not supported"),
        "merged weights": _more(
            of(f"{Q0}.weight", 8, 256) | of("model.norm.weight", 256),
            "base-model weights in the adapter (norm.weight, q_proj.weight): 2 tensors",
        ),
        "weights of a quantised base": _more(
            of(f"{Q0}.base_layer.weight", 8, 256) | of(f"{Q0}.base_layer.weight.absmax", 8),
            "base-model weights in the adapter (base_layer.weight, base_layer.weight.absmax): 2",
        ),
        "whole embeddings": _more(
            of("model.embed_tokens.weight", 512, 256) | of("lm_head.base_layer.weight", 512, 256),
            "full weights for embed_tokens, lm_head are in the file; retrain with LoRA on them or merge",
        ),
        "a saved module": _more(
            of("model.norm.modules_to_save.default.weight", 256),
            "full weights for norm are in the file",
        ),
        "trained tokens": _more(
            of("model.embed_tokens.token_adapter.trainable_tokens_delta", 2, 256),
            "trainable_tokens_delta is not a LoRA tensor",
        ),
        "KaSA's diagonal": _more(of(f"{Q0}.lora_diag", 4), f"{Q0}.lora_diag is not a LoRA tensor"),
        "AdaLoRA's values": _more(of(f"{Q0}.lora_E", 4, 1), "lora_E is not a LoRA tensor"),
        "an alpha in the file": _more(of(f"{Q0}.alpha", 1), f"{Q0}.alpha is not a LoRA tensor"),
        "names of diffusers": DenseCase(
            renamed(PLAIN, ("lora_A", "lora_down"), ("lora_B", "lora_up")),
            error=f"no LoRA tensors in adapter_model.safetensors (first: {Q0}.lora_down.weight)",
        ),
        "half a pair": DenseCase(
            {key: array for key, array in PLAIN.items() if key != b1},
            error=f"{V1} has lora_A but no lora_B",
        ),
        "what only training uses": DenseCase(
            PLAIN | training,
            PLAIN_UPDATES,
            config={"velora_config": {}, "monteclora_config": {"num_samples": 8}},
            normalized=(
                "left out, only training uses it: lora_monteclora_sampler (1 tensors)",
                "left out, only training uses it: lora_velora_embed (1 tensors)",
            ),
        ),
    }


def _shapes() -> dict[str, DenseCase]:
    qkv = "model.layers.0.self_attn.qkv_proj"
    gate_up = "model.layers.1.mlp.gate_up_proj"
    (_, (q_a, q_b)), (_, (g_a, g_b)) = ((m, pairs(m).values()) for m in (qkv, gate_up))
    attention, mlp = qkv.rpartition(".")[0], gate_up.rpartition(".")[0]
    a_key, b_key = (f"{PREFIX}{Q0}.lora_{side}.weight" for side in "AB")
    k0 = "model.layers.0.self_attn.k_proj"
    split = DenseCase(
        pairs(qkv) | pairs(gate_up),
        {
            f"{attention}.q_proj": (q_a, q_b[:256], 2.0),
            f"{attention}.k_proj": (q_a, q_b[256:384], 2.0),
            f"{attention}.v_proj": (q_a, q_b[384:], 2.0),
            f"{mlp}.gate_proj": (g_a, g_b[:512], 2.0),
            f"{mlp}.up_proj": (g_a, g_b[512:], 2.0),
        },
        normalized=(
            "qkv_proj split into q_proj, k_proj, v_proj (1 modules)",
            "gate_up_proj split into gate_proj, up_proj (1 modules)",
        ),
    )

    def shaped(module: str, a: tuple[int, int], b: tuple[int, int], error: str) -> DenseCase:
        names = (f"{PREFIX}{module}.lora_{side}.weight" for side in "AB")
        arrays = {name: np.ones(shape) for name, shape in zip(names, (a, b), strict=True)}
        return DenseCase(PLAIN | arrays, error=error)

    return {
        "fused": split,
        "fused of equal heads": shaped(
            qkv,
            (4, 256),
            (768, 4),
            f"{qkv}: lora_B has 768 rows, expected 512 (q_proj 256 + k_proj 128",
        ),
        "half of gate_up": shaped(
            gate_up,
            (4, 256),
            (512, 4),
            "lora_B has 512 rows, expected 1024 (gate_proj 512 + up_proj 512)",
        ),
        "a narrower base": shaped(
            Q0, (4, 128), (128, 4), f"{Q0}: lora_A has shape [4, 128], expected [4, 256] for base"
        ),
        "k of all heads": shaped(
            k0, (4, 256), (256, 4), f"{k0}: lora_B has shape [256, 4], expected [128, 4] for base"
        ),
        "factors exchanged": DenseCase(
            PLAIN | {a_key: PLAIN[b_key], b_key: PLAIN[a_key]},
            error=f"{Q0}: lora_A has shape [256, 4], expected [4, 256] for base",
        ),
        "B transposed": DenseCase(
            PLAIN | {b_key: PLAIN[b_key].T},
            error=f"{Q0}: lora_B has shape [4, 256], expected [256, 4] for base",
        ),
        "one row": DenseCase(
            pairs(*ATTENTION, rank=1), updates(pairs(*ATTENTION, rank=1), 8.0), config={"r": 1}
        ),
        "the highest rank": DenseCase(
            pairs(*ATTENTION, rank=8), updates(pairs(*ATTENTION, rank=8), 1.0), config={"r": 8}
        ),
        "no rows": shaped(Q0, (0, 256), (256, 0), "declares rank 4 but"),
        "shards that were not gathered": DenseCase(
            {key: np.ones(0) for key in PLAIN}, error=f"{Q0}: lora_A has shape [0], expected two"
        ),
        "a stack of one": DenseCase(
            PLAIN | {a_key: PLAIN[a_key][None]},
            error=f"{Q0}: lora_A has shape [1, 4, 256], expected two dimensions",
        ),
        "embeddings": DenseCase(EMBEDDINGS, updates(EMBEDDINGS)),
        "a longer lm_head": shaped(
            "lm_head",
            (4, 256),
            (520, 4),
            "lm_head LoRA has 520 rows, the base vocabulary size (512)",
        ),
        "a shorter lm_head": shaped(
            "lm_head", (4, 256), (500, 4), "lora_B has shape [500, 4], expected [512, 4]"
        ),
    }


CASES = {
    **_wrappers(),
    **_adapter_names(),
    **_roots(),
    **_strangers(),
    **_shapes(),
}
