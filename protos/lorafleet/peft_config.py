"""adapter_config.json: PEFT's rules for rank and scaling, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_CONFIG_BYTES = 1 << 20


@dataclass(frozen=True)
class AdapterConfig:
    """The fields of adapter_config.json that decide what an adapter computes."""

    r: int
    lora_alpha: float
    use_rslora: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    base_model_name_or_path: str = ""
    peft_version: str = ""
    target_modules: tuple[str, ...] | str = ()
    target_parameters: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: bytes, *, adapter: str) -> AdapterConfig:
        """Return the config from adapter_config.json's bytes.

        Raises InvalidAdapter for malformed text and for every PEFT feature whose mathematics
        no engine of ours applies (DoRA, bias, aLoRA, PiSSA, modules_to_save, ..).
        """
        raise NotImplementedError

    def rank_for(self, module: str) -> int:
        """Return the rank PEFT gives `module` (a name without `base_model.model.`)."""
        raise NotImplementedError

    def scaling_for(self, module: str, rank: int) -> float:
        """Return alpha/rank, or alpha/sqrt(rank) with rsLoRA, with `module`'s own alpha."""
        raise NotImplementedError
