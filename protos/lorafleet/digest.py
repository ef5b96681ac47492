"""The identity of a revision: a digest over what the engine will compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lorafleet.layout import CanonicalModule


def canonical_digest(
    dtype: str,
    modules: Mapping[str, CanonicalModule],
    tensor_hashes: Mapping[str, tuple[str, str]],
) -> str:
    """Return "sha256:<hex>" of the canonical content.

    `tensor_hashes` maps each module to the SHA-256 hex digests of its packed A and B bytes.
    """
    raise NotImplementedError
