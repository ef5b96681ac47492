"""Asks a model of the pool: `ask.py MODEL QUESTION [SECONDS]`. Runs in the client's pod.

Prints the answer. With SECONDS it asks again and again for so long and counts answers and failures.
"""

import json
import sys
import time
import urllib.request
from collections import Counter

POOL = "http://lorapool-smollm2.demo.svc"


def ask(model: str, question: str) -> str:
    """The beginning of the answer of `model`. Raises OSError."""
    wanted = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 24,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"{POOL}/v1/chat/completions",
        json.dumps(wanted).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
        return said.replace("\n", " ")


def keep_asking(model: str, question: str, seconds: float) -> Counter[str]:
    """How often there was which answer, or which failure."""
    heard: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            heard[ask(model, question)] += 1
        except OSError as failure:
            heard[f"failed: {failure}"] += 1
        time.sleep(0.1)
    return heard


if __name__ == "__main__":
    if len(sys.argv) > 3:
        for said, times in keep_asking(*sys.argv[1:3], float(sys.argv[3])).most_common():
            print(f"{times} times: {said}")
    else:
        print(ask(sys.argv[1], sys.argv[2]))
