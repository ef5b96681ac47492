"""Mutators that know the structure: JSON values and keys, numbers, texts, and plain bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

NUMBERS = [0, 1, -1, 2, 7, 8, 255, 256, 65536, 1 << 31, (1 << 32) - 1, 1 << 53, 1 << 62]
NUMBERS += [(1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 10**30, -(1 << 63)]
_RAW = ["NaN", "Infinity", "-Infinity", "1e400", "-0", "1.5", "1e-320", "null", "true", "false"]
_RAW += ['""', "{}", "[]", "[[]]", '"\\ud800"', '"\\u0000"', "0x1", "1_0", "'a'", "\ufeff1", "[1,]"]
_TEXTS = ["", "\u0660", "\u00b2", "\u202e", "e\u0301", "\U0001f600", "\n", "\x7f", "\x00", "%s%n"]
_TEXTS += ["../..", "a" * 513, "__metadata__", "model.", ".", "..", "9" * 40, "{0}", "\u2028"]
_PATTERNS = ["(a+)+$", "(a|a)*b", ".*.*.*x", "((((a{9}){9}){9}){9})", "[^]", "[z-a]", "a{2,1}"]
_PATTERNS += [
    "x{1000}",
    "(",
    ")",
    "\\",
    "(?=a)",
    "^$|^",
    "(|)*",
    "[\\w-z]",
    ".*layers\\.\\d+.*",
    "a**",
]
_PATTERNS += [
    "m.del.l.yers",
    r"^model\.layers",
    ".a.b.c.d",
    "layers.1.mlp.up_proj$",
    "a[b]",
    "a|b|c|d",
]
_PATTERNS += ["(.?){900}", "(.*a){200}", "\\b", "$^", "(?:q|k|v)_proj", "({0,0}a)", "((){99}){99}"]


class Raw(str):
    """Text that stands in the JSON as it is."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """An object as its pairs: a key may come twice."""


def load(text: bytes) -> Any:
    """Return the tree of a valid JSON text, its objects as Pairs."""
    return json.loads(text, object_pairs_hook=Pairs)


def render(node: Any) -> str:
    """Return the JSON text of a tree."""
    if isinstance(node, Raw):
        return str(node)
    if isinstance(node, Pairs):
        return "{" + ",".join(f"{render(key)}:{render(value)}" for key, value in node) + "}"
    if isinstance(node, dict):
        return render(Pairs(node.items()))
    if isinstance(node, list):
        return "[" + ",".join(map(render, node)) + "]"
    return json.dumps(node)


def hostile(random: Random) -> Any:
    """Return a value that few readers expect."""
    kind = random.randrange(8)
    if kind < 2:
        return random.choice(NUMBERS)
    if kind < 4:
        return Raw(random.choice(_RAW))
    if kind == 4:
        return random.choice(_PATTERNS)
    if kind == 5:
        return random.choice(_TEXTS)
    if kind == 6:
        return Raw("9" * random.choice([20, 400, 4301]))
    depth = random.choice([3, 60, 1500, 100_000 if random.random() < 0.05 else 200])
    opening, closing = random.choice([("[", "]"), ('{"a":', "}")])
    return Raw(opening * depth + "1" + closing * depth)


def hostile_key(random: Random, key: str) -> str:
    """Return a key near to `key`, or one that is not expected at all."""
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(_TEXTS)
    if kind == 1:
        return random.choice(_PATTERNS)
    at = random.randrange(len(key) + 1)
    return key[:at] + (random.choice(_TEXTS) if kind == 2 else "") + key[at + kind - 2 :]


def tree(random: Random, root: Any, others: list[Any]) -> Any:
    """Change one place of a JSON tree; `others` are values of its own kind to put there."""
    node = root
    while True:
        if not isinstance(node, list) or not node:
            return root
        at = random.randrange(len(node))
        pairs = isinstance(node, Pairs)
        child = node[at][1] if pairs else node[at]
        if isinstance(child, list) and child and random.random() < 0.75:
            node = child
            continue
        break
    action = random.randrange(7)
    if action == 0:
        del node[at]
    elif action == 1:
        again = Raw(render(child))  # a copy: the tree must stay one
        node.append((node[at][0], again) if pairs else again)  # of an object: the same key twice
    elif action == 2 and pairs:
        node[at] = (hostile_key(random, node[at][0]), child)
    elif action == 3:
        node.insert(at, node.pop(random.randrange(len(node))))
    elif action == 4 and random.random() < 0.2:
        extra = hostile(random)
        many = min(random.choice([10, 300, 2000]), 1 + (100_000 // (1 + len(render(extra)))))
        pattern = random.choice(_PATTERNS)
        for number in range(many):
            node.append((f"{pattern}{number}", extra) if pairs else extra)
    else:
        known = others and random.random() < 0.5
        new = Raw(render(random.choice(others))) if known else hostile(random)
        node[at] = (node[at][0], new) if pairs else new
    return root


def text(random: Random, raw: bytes, others: list[Any]) -> bytes:
    """Change a valid JSON text in one to four places, sometimes its bytes too."""
    root = load(raw)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        tree(random, root, others)
    out = render(root).encode("utf-8", "surrogatepass")
    return noise(random, out) if random.random() < 0.1 else out


def noise(random: Random, raw: bytes) -> bytes:
    """Change bytes: flip, cut, repeat, insert, overwrite with a border value, or append."""
    out = bytearray(raw)
    for _ in range(random.choice([1, 1, 2, 6])):
        at = random.randrange(len(out) + 1)
        action = random.randrange(7)
        if action == 0 and at < len(out):
            out[at] ^= 1 << random.randrange(8)
        elif action == 1 and at < len(out):
            out[at] = random.choice([0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x7B, 0x2C])
        elif action == 2:
            del out[at:]
        elif action == 3:
            del out[at : at + random.randrange(1, 17)]
        elif action == 4:
            out[at:at] = out[at : at + random.randrange(1, 65)]
        elif action == 5:
            width = random.choice([1, 2, 4, 8])
            number = random.choice(NUMBERS) & (1 << 8 * width) - 1
            out[at : at + width] = number.to_bytes(width, "little")
        else:
            out += random.randbytes(random.randrange(1, 33))
    return bytes(out)
