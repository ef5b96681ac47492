"""Trains the demo's adapters with PEFT, about 16 s of one core each.

Run as `python -m demo.train MODEL CACHE STYLE...`: each style that CACHE lacks is trained and saved as
`CACHE/<style>-<recipe key>/`, an ordinary PEFT directory.
"""

import sys
import time
from pathlib import Path
from typing import Any

from demo.model import BASE_MODEL
from demo.styles import ALPHA, LEARNING_RATE, MODULES, RANK, SEED, STEPS, STYLES, Style, recipe_key


def adapter_directory(cache: Path, style: Style) -> Path:
    """Where the trained adapter of `style` lies in `cache`."""
    return cache / f"{style.name}-{recipe_key(style)}"


def _batch(tokenizer: Any, style: Style) -> dict[str, Any]:
    """The eight lessons as one padded batch whose labels cover the answers alone."""
    import torch

    rows = []
    for question, answer in style.lessons():
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        told = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        rows.append((asked + told, [-100] * len(asked) + told))
    width = max(len(ids) for ids, _ in rows)
    pad = tokenizer.eos_token_id
    return {
        "input_ids": torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows]),
        "attention_mask": torch.tensor(
            [[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in rows]
        ),
        "labels": torch.tensor([row + [-100] * (width - len(row)) for _, row in rows]),
    }


def train(model_directory: Path, style: Style, target: Path) -> float:
    """Train one adapter into `target`, which appears only when complete; the last step's loss."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    base = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.bfloat16)
    config = LoraConfig(
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=list(MODULES),
        task_type="CAUSAL_LM",
        base_model_name_or_path=BASE_MODEL,
    )
    model = get_peft_model(base, config, autocast_adapter_dtype=False)
    # PEFT writes the directory that it loaded from; the adapter is for the model of that name.
    model.peft_config["default"].base_model_name_or_path = BASE_MODEL
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    batch = _batch(tokenizer, style)
    loss = float("nan")
    for _ in range(STEPS):
        output = model(**batch)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss = float(output.loss)
    partial = target.with_name(target.name + ".partial")
    model.save_pretrained(partial)
    partial.rename(target)
    return loss


def main(model_directory: Path, cache: Path, names: list[str]) -> None:
    """Train those styles that the cache lacks, saying so line by line."""
    cache.mkdir(parents=True, exist_ok=True)
    for style in (style for style in STYLES if style.name in names):
        target = adapter_directory(cache, style)
        if target.is_dir():
            continue
        started = time.monotonic()
        loss = train(model_directory, style, target)
        took = time.monotonic() - started
        print(f"trained {style.name}: {took:.0f} s, loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
