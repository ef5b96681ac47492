"""From a spec's `source` to the provider that reads it: the one match statement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet_operator.sources.base import Source
    from lorafleet_operator.sources.bounds import SourceSettings


def open_source(
    source: Mapping[str, Any] | Any,
    *,
    namespace: str,
    name: str,
    settings: SourceSettings,
    secret: Mapping[str, bytes] | None,
    on_read: Callable[[int], None] | None = None,
) -> Source:
    """Return the source that `spec.source` describes; opens no connection.

    `source` is the API model or its camelCase mapping: exactly one of `s3`, `http` and
    `persistentVolumeClaim`, and maybe `credentialsSecretRef: {name}` and `allowPickle`.
    `namespace` and `name` are the adapter's. `secret` is the decoded data of the referenced
    Secret, None if there is none; without a reference the source is read anonymously.
    `on_read` is called with the number of bytes each time some arrived from the source.
    Raises `PathNotAllowed` for an address that the bounds forbid, `AccessDenied` for a Secret
    that is missing or lacks a key.
    """
    raise NotImplementedError
