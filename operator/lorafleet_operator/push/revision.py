"""One revision as a trainer describes it: checked before a byte of it is taken. Pure."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lorafleet.errors import InvalidAdapter, TooLarge
from lorafleet.header import parse_header
from lorafleet.peft_config import AdapterConfig
from lorafleet.push.sending import MOST_TENSORS

from lorafleet_operator.sources.bounds import MAX_CONFIG_BYTES, SourceSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST_BYTES: Final = 32
_DOMAIN: Final = b"lorafleet push 1\n"


@dataclass(frozen=True)
class PushedRevision:
    """Header, config and the digest of each tensor, in the order of the header's offsets.

    The parsed header is not kept: it takes ten times the memory of its text.
    """

    revision: str
    """"sha256:..." over all of them: the identity of the content."""
    header_bytes: bytes
    config_bytes: bytes
    sizes: array[int]
    """Of each tensor, in bytes."""
    digests: tuple[bytes, ...]

    def size(self, index: int) -> int:
        """Return the bytes of one tensor."""
        return self.sizes[index]

    def name(self, index: int) -> str:
        """Return the name of one tensor."""
        return parse_header(self.header_bytes).tensors[index].name

    def needed(self) -> dict[bytes, int]:
        """Return digest -> index of the first tensor of that content, those without bytes left out."""
        found: dict[bytes, int] = {}
        for index, digest in enumerate(self.digests):
            if self.size(index):
                found.setdefault(digest, index)
        return found


def described(
    header_bytes: bytes,
    config_bytes: bytes,
    digests: Sequence[bytes],
    *,
    adapter: str,
    settings: SourceSettings,
) -> PushedRevision:
    """Return the checked revision.

    Raises InvalidAdapter and TooLarge, naming what was found and what was wanted.
    """
    if len(config_bytes) > MAX_CONFIG_BYTES:
        raise InvalidAdapter(
            f"adapter_config.json has {len(config_bytes)} bytes, at most {MAX_CONFIG_BYTES}"
        )
    tensors = max(len(digests), header_bytes.count(b"{") - 2)  # the header's own, its metadata's
    if tensors > MOST_TENSORS:
        raise TooLarge(f"the push has {tensors} tensors, at most {MOST_TENSORS} are taken")
    AdapterConfig.parse(config_bytes, adapter=adapter)
    header = parse_header(header_bytes, file_name="the pushed header")
    if header.data_bytes > settings.max_adapter_bytes:
        raise TooLarge(
            f"the push has {header.data_bytes} bytes of tensors, "
            f"at most {settings.max_adapter_bytes} are allowed"
        )
    if len(digests) != len(header.tensors):
        raise InvalidAdapter(
            f"the push has {len(digests)} digests for {len(header.tensors)} tensors"
        )
    wrong = next((each for each in digests if len(each) != DIGEST_BYTES), None)
    if wrong is not None:
        raise InvalidAdapter(f"a tensor's digest has {len(wrong)} bytes, SHA-256 has 32")
    sizes: dict[bytes, int] = {}
    for tensor, digest in zip(header.tensors, digests, strict=True):
        size = tensor.end - tensor.begin
        if sizes.setdefault(digest, size) != size:
            raise InvalidAdapter(f"{tensor.name} has the digest of a tensor of another size")
    return PushedRevision(
        revision_of(header_bytes, config_bytes, digests),
        header_bytes,
        config_bytes,
        array("Q", (tensor.end - tensor.begin for tensor in header.tensors)),
        tuple(digests),
    )


def revision_of(header_bytes: bytes, config_bytes: bytes, digests: Sequence[bytes]) -> str:
    """Return the identity of the content, `sha256:<hex>`; trainers compute the same."""
    found = hashlib.sha256(_DOMAIN)
    found.update(hashlib.sha256(config_bytes).digest())
    found.update(hashlib.sha256(header_bytes).digest())
    for digest in digests:
        found.update(digest)
    return f"sha256:{found.hexdigest()}"
