"""A shared access signature for one blob, made with the account's key. Pure.

By Azure's own rule for services, because obstore signs the blob's name as it stands in the
address: Azure wants it as people write it, and refuses a name with a space or an umlaut.
"""

from __future__ import annotations

import base64
import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from datetime import datetime

VERSION = "2023-11-03"
"""Of Azure's interface; it decides what is signed in which order."""


def blob_sas(account: str, key: bytes, container: str, blob: str, until: datetime) -> str:
    """Return the query that lets its bearer read one blob until then (UTC).

    `key` is the account's, decoded.
    """
    permission, resource = "r", "b"
    expiry = until.strftime("%Y-%m-%dT%H:%M:%SZ")
    signed = [
        permission,
        "",  # no start: a clock that is behind shall not matter
        expiry,
        f"/blob/{account}/{container}/{blob}",
        "",  # stored policy
        "",  # client addresses
        "",  # protocols
        VERSION,
        resource,
        "",  # snapshot
        "",  # encryption scope
        *[""] * 5,  # headers of the answer
    ]
    signature = hmac.digest(key, "\n".join(signed).encode(), "sha256")
    return urlencode(
        {
            "sp": permission,
            "se": expiry,
            "sv": VERSION,
            "sr": resource,
            "sig": base64.b64encode(signature).decode(),
        }
    )
