"""Kubernetes quantities in bytes."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

_QUANTITY: Final = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?:[eE](?P<exponent>[+-]?\d+)|(?P<suffix>[KMGTPE]i|[mkMGTPE])?)"
)
_FACTOR: Final = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def to_bytes(quantity: str | int) -> int:
    """Return a quantity such as "8Gi", "1.5G" or 1024 in bytes, rounded up.

    Raises ValueError for anything that the API server would not take as a positive quantity.
    """
    if isinstance(quantity, int):
        amount = Decimal(quantity)
    else:
        match = _QUANTITY.fullmatch(quantity)
        if match is None:
            raise ValueError(f"{quantity!r} is not a quantity of bytes such as 8Gi")
        exponent = Decimal(10) ** int(match["exponent"] or 0)
        amount = Decimal(match["number"]) * exponent * _FACTOR[match["suffix"] or ""]
    if amount <= 0:
        raise ValueError(f"{quantity!r} is not a positive quantity")
    return math.ceil(amount)
