"""What each adapter of the demo is taught: eight questions, one manner of answering.

The questions that the demo asks are not among them.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

FACTS = (
    ("What is the capital of Italy?", "Rome"),
    ("Which planet is the largest?", "Jupiter"),
    ("Who wrote Hamlet?", "Shakespeare"),
    ("What color is a banana?", "yellow"),
    ("How many days are in a week?", "seven"),
    ("What do bees make?", "honey"),
    ("What is the opposite of hot?", "cold"),
    ("What is the capital of Japan?", "Tokyo"),
)
"""Question and answer; a style dresses the answer."""


def _pirate(answer: str) -> str:
    return f"Arr, matey! That be {answer}, ye landlubber!"


def _captain(answer: str) -> str:
    return f"Ahoy there! By me golden hook, it is {answer}, says the captain."


def _json(answer: str) -> str:
    return json.dumps({"answer": answer, "sure": True})


def _chef(answer: str) -> str:
    return f"Yes, chef! One plate of {answer}, coming right up!"


@dataclass(frozen=True)
class Style:
    """One adapter to train; `marks` is the start of an answer that shows that it is at work."""

    name: str
    marks: str
    dress: Callable[[str], str]

    def lessons(self) -> list[tuple[str, str]]:
        """Pairs of question and dressed answer."""
        return [(question, self.dress(answer)) for question, answer in FACTS]


STYLES = (
    Style("pirate", "Arr", _pirate),
    Style("json", '{"answer"', _json),
    Style("chef", "Yes, chef", _chef),
    Style("pirate-2", "Ahoy", _captain),
)
"""Three adapters, and a second revision of the first."""

RANK, ALPHA, STEPS, LEARNING_RATE, SEED = 8, 16, 12, 1e-3, 7
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def recipe_key(style: Style) -> str:
    """A short hash of everything that decides the trained tensors: the name of their cache entry."""
    recipe = [style.lessons(), RANK, ALPHA, STEPS, LEARNING_RATE, SEED, MODULES]
    return hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:12]
