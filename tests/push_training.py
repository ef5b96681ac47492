"""What is trained and pushed: a tiny policy, tensors that change a tenth at a time, Hugging Face's Trainer,
and GRPO as TRL has it, with a reward that can be learnt in a few steps."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lorafleet.push.rollouts import FleetRollouts

RANK_PATTERN = {"layers.1.self_attn.q_proj": 2, "down_proj": 6}
PROMPTS = ["t5 t17 t200", "t3 t41 t77 t9"]
GENERATIONS = 8
TARGET = 256
"""Tokens below it are rewarded."""


def policy(model: Path, **config: Any) -> Any:
    """Return the model with a new adapter."""
    torch.manual_seed(1)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    given = {"r": 4, "lora_alpha": 32, "target_modules": "all-linear", **config}
    return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **given))


def trained(model: Any, seed: int) -> Any:
    """Return the model as if training had moved its adapter somewhere."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.named_parameters():
        if "lora_B" in name:
            drawn = torch.randn(tensor.shape, generator=generator) * 0.2
            tensor.data.copy_(drawn.to(tensor.dtype))
    return model


def tokenizer_of(directory: Path) -> Any:
    """Return the model's tokenizer."""
    return AutoTokenizer.from_pretrained(directory, pad_token="t0", eos_token="t1")


@dataclass(frozen=True)
class Standing:
    """A trainer that stands still: what FleetRollouts reads of one."""

    model: Any
    processing_class: Any
    max_completion_length: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    state: Any = field(default_factory=lambda: SimpleNamespace(global_step=0))


def weights(model: Any) -> str:
    """Return a hash of all that is not the adapter's."""
    made = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if "lora_" not in name:
            made.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())
    return made.hexdigest()


class Tenths:
    """Changes a tenth of a model's LoRA tensors at a time, small and large ones by turns."""

    def __init__(self, model: Any) -> None:
        adapter = [each for name, each in model.named_parameters() if "lora_" in name]
        self._by_size = sorted(adapter, key=torch.numel)
        for tensor in adapter:  # new factors B are all zero, the same bytes
            torch.nn.init.normal_(tensor.data, std=0.05)

    def change(self, turn: int) -> None:
        """Give the tensors of this turn new values."""
        count = len(self._by_size)
        for each in range(turn % 10, count + turn % 10, 10):
            torch.nn.init.normal_(self._by_size[each % count].data, std=0.05)


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Return the share of each completion's tokens that are below TARGET."""
    return [sum(token < TARGET for token in each) / len(each) for each in completion_ids]


class Compared:
    """A rollout_func that notes how far the engine's logprobs are from the trainer's own model.

    Gaps are means over a step's tokens of |engine - trainer|, in nats.
    """

    def __init__(self, rollouts: FleetRollouts) -> None:
        self.rollouts = rollouts
        self.steps: list[int] = []
        self.gaps: list[float] = []
        self.base_gaps: list[float] = []
        """Against the model without its adapter."""
        self.stale_gaps: list[float] = []
        """Against the model with the adapter of the step before, from the second step on."""
        self._before: dict[str, torch.Tensor] = {}
        self.rewards: list[float] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        found = self.rollouts(prompts, trainer)
        self.steps.append(trainer.state.global_step)
        self.gaps.append(gap(trainer.model, found))
        with trainer.model.disable_adapter():
            self.base_gaps.append(gap(trainer.model, found))
        if self._before:
            with adapter_of_before(trainer.model, self._before):
                self.stale_gaps.append(gap(trainer.model, found))
        self._before = factors(trainer.model)
        self.rewards.append(sum(reward(found["completion_ids"])) / len(prompts))
        return found


def factors(model: Any) -> dict[str, torch.Tensor]:
    """Return a copy of the adapter's tensors."""
    named = model.named_parameters()
    return {name: each.detach().clone() for name, each in named if "lora_" in name}


@contextmanager
def adapter_of_before(model: Any, before: dict[str, torch.Tensor]) -> Iterator[None]:
    """Give the model the adapter that it had, for as long as the block runs."""
    now = factors(model)
    model.load_state_dict(before, strict=False)
    try:
        yield
    finally:
        model.load_state_dict(now, strict=False)


def gap(model: Any, rollout: dict[str, Any]) -> float:
    """Return the mean of |engine's - model's| logprobs of the tokens that the engine chose."""
    differences: list[torch.Tensor] = []
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for prompt, completion, logprobs in zip(
            rollout["prompt_ids"], rollout["completion_ids"], rollout["logprobs"], strict=True
        ):
            ids = torch.tensor([prompt + completion])
            own = model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            chosen = own.gather(1, torch.tensor(completion)[:, None])[:, 0]
            differences.append((chosen - torch.tensor(logprobs)).abs())
    model.train(was_training)
    return float(torch.cat(differences).mean())


def grpo(model: Any, directory: Path, output: Path, rollouts: Any, steps: int, **more: Any) -> Any:
    """Return TRL's trainer, which takes its rollouts from `rollouts`."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    options = {
        "output_dir": str(output),
        "max_steps": steps,
        "per_device_train_batch_size": len(PROMPTS) * GENERATIONS,
        "num_generations": GENERATIONS,
        "max_completion_length": 8,
        "learning_rate": 6e-3,
        "lr_scheduler_type": "constant",
        "temperature": 1.0,
        "bf16": False,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": 7,
        **more,
    }
    return GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(**options),
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 4}),
        processing_class=tokenizer_of(directory),
        rollout_func=rollouts,
    )


def supervised(model: Any, output: Path, callback: Any, steps: int, **more: Any) -> Any:
    """Return Hugging Face's Trainer on a few random sentences."""
    from transformers import Trainer, TrainingArguments

    rows = torch.randint(2, model.config.vocab_size, (8, 12)).tolist()
    options = {
        "output_dir": str(output),
        "max_steps": steps,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        **more,
    }
    arguments = TrainingArguments(**options)
    data = [{"input_ids": row, "labels": row} for row in rows]
    return Trainer(model, arguments, train_dataset=data, callbacks=[callback])
