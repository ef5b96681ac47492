"""Asks the engine as any client would."""

from __future__ import annotations

import httpx

QUESTIONS = ("What is the capital of France?", "Who painted the Mona Lisa?")
"""None of them is in what the adapters were taught."""


def ask(url: str, model: str, question: str) -> tuple[int, str]:
    """HTTP status and the answer's text (or the error's) of `model` at the engine `url`."""
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        json={
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 24,
            "temperature": 0,
        },
        timeout=120,
    )
    body = answer.json()
    if answer.status_code == 200:
        return 200, str(body["choices"][0]["message"]["content"]).strip()
    return answer.status_code, str(body.get("error", body).get("message", body))
