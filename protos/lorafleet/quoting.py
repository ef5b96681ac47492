"""How words from outside (tensor names, model names) appear in one-line messages."""

from __future__ import annotations


def shown(text: str, limit: int = 160) -> str:
    """Return `text` on one line of at most `limit` characters, unprintable ones as escapes."""
    if len(text) > limit:
        text = text[: limit - 1] + "\u2026"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
