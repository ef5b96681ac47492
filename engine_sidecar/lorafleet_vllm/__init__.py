"""The vLLM plugin."""


def register() -> None:
    """Entry point of vllm.general_plugins."""
