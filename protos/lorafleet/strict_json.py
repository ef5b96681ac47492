"""JSON objects from outside: bounded, UTF-8, without duplicate keys, never a RecursionError."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lorafleet.quoting import shown

if TYPE_CHECKING:
    from collections.abc import Callable


class StrictJsonError(ValueError):
    """What is wrong with the text, as the end of a sentence that begins with its name."""


def load_object(
    text: bytes, limit: int, parse_float: Callable[[str], float] = float
) -> dict[str, Any]:
    """Return the JSON object in `text`.

    Raises StrictJsonError for more than `limit` bytes, or text that is not one object;
    `parse_float` may raise it too (it is also given NaN and Infinity).
    """
    if len(text) > limit:
        raise StrictJsonError(f"has {len(text)} bytes, at most {limit}")
    raw = _parse(text, parse_float)
    # A call for each object takes as long as all the rest, so only where keys may be lost.
    if isinstance(raw, dict) and text.count(b":") != _shallow_pairs(raw):
        del raw
        raw = _parse(text, parse_float, _unique)
    if not isinstance(raw, dict):
        raise StrictJsonError("is not a JSON object")
    return raw


def _shallow_pairs(raw: dict[str, Any]) -> int:
    """Return how many pairs the object and those in it kept: at most one for each colon."""
    return len(raw) + sum(len(value) for value in raw.values() if isinstance(value, dict))


def _parse(
    text: bytes,
    parse_float: Callable[[str], float],
    pairs_hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> object:
    try:
        parsed: object = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=pairs_hook,
            parse_float=parse_float,
            parse_constant=parse_float,
        )
    except StrictJsonError:
        raise
    except UnicodeDecodeError as bad:
        raise StrictJsonError(f"is not UTF-8 (byte {bad.start})") from None
    except RecursionError:
        raise StrictJsonError("is nested too deeply") from None
    except ValueError as bad:  # JSONDecodeError, and integers of thousands of digits
        raise StrictJsonError(f"is not JSON ({shown(str(bad))})") from None
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise StrictJsonError(f"has two entries named {shown(name)}")
            seen.add(name)
    return unique
