"""Which modules vLLM can adapt in a model, worked out from its config.json.

Only the running engine knows for sure; this is what vLLM 0.32 makes of the architectures below,
for pipelines that have no engine at hand. An architecture that is not here is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lorafleet.profile import LoraModule, ModuleKind
from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


MAX_LAYERS = 4096
"""Bound on what a config.json may promise."""


class UnknownModel(ValueError):
    """Raised for a config.json that gives no profile; one line for people."""


@dataclass(frozen=True)
class Architecture:
    """What differs between the models of one `model_type`."""

    name: str  # vLLM's class for it
    heads: bool = False  # vLLM takes LoRA on embed_tokens and lm_head
    head: int = 0  # head_dim if config.json has none; 0: the hidden size over the heads
    kv: bool = False  # num_key_value_heads may be missing: as many as heads
    fused: bool = False  # checkpoints have qkv_proj and gate_up_proj
    moe: str = ""  # name of the sparse block in a layer
    experts: str = ""  # key of the number of experts
    width: str = ""  # key of an expert's intermediate size
    shared: bool = False  # config.json always says how wide the shared expert is
    projections: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")


_EXPERTS = ("num_experts", "num_local_experts")
_QWEN_MOE = {"moe": "mlp", "experts": "num_experts", "width": "moe_intermediate_size"}
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", heads=True, kv=True),
    "mistral": Architecture("MistralForCausalLM"),
    "mixtral": Architecture(
        "MixtralForCausalLM",
        heads=True,
        moe="block_sparse_moe",
        experts="num_local_experts",
        width="intermediate_size",
        projections=("w1", "w3", "w2"),
    ),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM", heads=True, head=128),
    "qwen2_moe": Architecture("Qwen2MoeForCausalLM", shared=True, **_QWEN_MOE),  # type: ignore[arg-type]
    "qwen3_moe": Architecture("Qwen3MoeForCausalLM", heads=True, head=128, **_QWEN_MOE),  # type: ignore[arg-type]
    "gemma": Architecture("GemmaForCausalLM", head=256),
    "gemma2": Architecture("Gemma2ForCausalLM", head=256),
    "gemma3_text": Architecture("Gemma3ForCausalLM", head=256),
    "phi3": Architecture("Phi3ForCausalLM", heads=True, kv=True, fused=True),
}
"""What `transformers` fills in for a missing key counts; where that is an arbitrary number of its
own, the key has to be there."""


@dataclass(frozen=True)
class ModelConfig:
    """The keys of config.json that decide shapes."""

    raw: Mapping[str, Any]
    architecture: Architecture

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the checked config. Raises UnknownModel naming what is missing."""
        kind = raw.get("model_type")
        if not isinstance(kind, str) or kind not in ARCHITECTURES:
            raise UnknownModel(
                f"config.json: model_type {shown(str(kind), 60)} is not one of "
                f"{', '.join(sorted(ARCHITECTURES))}; take the profile of a running engine "
                "(lorafleet-sidecar profile -o json)"
            )
        names = raw.get("architectures")
        wanted = ARCHITECTURES[kind].name
        if names and names != [wanted]:
            raise UnknownModel(
                f"config.json: architectures is {shown(str(names), 80)}, expected [{wanted}] for "
                f"model_type {kind}; take the profile of a running engine "
                "(lorafleet-sidecar profile -o json)"
            )
        return cls(raw, ARCHITECTURES[kind])

    def size(self, key: str, default: int | None = None) -> int:
        """Return a size above 0; a missing or null key is `default`."""
        value = self.raw.get(key)
        value = default if value is None else value
        if type(value) is not int or not 0 < value < 1 << 31:
            raise UnknownModel(f"config.json: {key} is {shown(str(value), 40)}, expected a size")
        return value

    @property
    def layers(self) -> int:
        """Number of hidden layers."""
        found = self.size("num_hidden_layers")
        if found > MAX_LAYERS:
            raise UnknownModel(
                f"config.json: num_hidden_layers is {found}, expected at most {MAX_LAYERS}"
            )
        return found

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding."""
        return self.size("vocab_size")

    def modules(self) -> tuple[LoraModule, ...]:
        """Return every module that takes LoRA, under the checkpoint's names."""
        hidden = self.size("hidden_size")
        found: list[LoraModule] = []
        if self.architecture.heads:
            vocabulary = self.vocabulary
            found.append(LoraModule("model.embed_tokens", vocabulary, hidden, ModuleKind.EMBEDDING))
            found.append(LoraModule("lm_head", hidden, vocabulary))
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}"
            found += self._attention(f"{prefix}.self_attn", hidden)
            if self._is_sparse(layer):
                found += self._sparse(f"{prefix}.{self.architecture.moe}", hidden)
            else:
                found += self._dense(f"{prefix}.mlp", hidden, self.size("intermediate_size"))
        return tuple(found)

    def _attention(self, prefix: str, hidden: int) -> Iterator[LoraModule]:
        heads = self.size("num_attention_heads")
        head = self.size("head_dim", self.architecture.head or hidden // heads)
        kv_heads = self.size("num_key_value_heads", heads if self.architecture.kv else None)
        q, kv = heads * head, kv_heads * head
        if self.architecture.fused:
            yield LoraModule(f"{prefix}.qkv_proj", hidden, q + 2 * kv)
        else:
            yield LoraModule(f"{prefix}.q_proj", hidden, q)
            yield LoraModule(f"{prefix}.k_proj", hidden, kv)
            yield LoraModule(f"{prefix}.v_proj", hidden, kv)
        yield LoraModule(f"{prefix}.o_proj", q, hidden)

    def _dense(self, prefix: str, hidden: int, width: int) -> Iterator[LoraModule]:
        if self.architecture.fused:
            yield LoraModule(f"{prefix}.gate_up_proj", hidden, 2 * width)
        elif self._wraps_gate_up():
            yield LoraModule(f"{prefix}.gate_proj", hidden, width)
            yield LoraModule(f"{prefix}.up_proj", hidden, width)
        yield LoraModule(f"{prefix}.down_proj", width, hidden)

    def _sparse(self, prefix: str, hidden: int) -> Iterator[LoraModule]:
        kind = self.architecture
        experts, width = self._experts(), self.size(kind.width)
        yield LoraModule(f"{prefix}.gate", hidden, experts)
        if self._shared_width():
            yield from self._dense(f"{prefix}.shared_expert", hidden, self._shared_width())
        if kind.shared or self._shared_width():  # vLLM makes the gate also for no shared expert
            yield LoraModule(f"{prefix}.shared_expert_gate", hidden, 1)
        gate, up, down = (f"{prefix}.experts.{name}" for name in kind.projections)
        yield LoraModule(gate, hidden, width, ModuleKind.EXPERTS, experts)
        yield LoraModule(up, hidden, width, ModuleKind.EXPERTS, experts)
        yield LoraModule(down, width, hidden, ModuleKind.EXPERTS, experts)

    def _experts(self) -> int:
        """Number of experts; transformers 5 writes that of qwen3_moe as num_local_experts."""
        key = self.architecture.experts
        present = [name for name in _EXPERTS if self.raw.get(name) is not None] or [key]
        found = {name: self.size(name) for name in present}
        if len(set(found.values())) > 1:
            said = " and ".join(f"{name} is {size}" for name, size in found.items())
            raise UnknownModel(f"config.json: {said}, expected one number")
        return found[present[0]]

    def _is_sparse(self, layer: int) -> bool:
        if self.architecture.moe != "mlp":
            return bool(self.architecture.moe)
        step = self.size("decoder_sparse_step", 1)
        return layer not in self._dense_layers() and (layer + 1) % step == 0

    def _dense_layers(self) -> list[Any]:
        found = self.raw.get("mlp_only_layers") or []
        if not isinstance(found, list):
            raise UnknownModel(
                f"config.json: mlp_only_layers is {shown(str(found), 40)}, expected a list"
            )
        return found

    def _wraps_gate_up(self) -> bool:
        """Whether vLLM takes LoRA on a dense block's gate and up: in its Qwen-MoE only if the config
        tells of such blocks; those that decoder_sparse_step alone leaves dense it overlooks."""
        if self.architecture.moe != "mlp":
            return True
        return bool(self._dense_layers()) or bool(self._shared_width())

    def _shared_width(self) -> int:
        key = "shared_expert_intermediate_size"
        found = self.raw.get(key)
        if (
            self.architecture.moe != "mlp"
            or found == 0
            or (found is None and not self.architecture.shared)
        ):
            return 0
        return self.size(key)
