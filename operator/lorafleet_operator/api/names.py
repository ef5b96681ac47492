"""Every name that the API promises, and the rules for names that people choose."""

from __future__ import annotations

import unicodedata
from typing import Final

GROUP: Final = "lorafleet.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

ADAPTER_KIND: Final = "LoRAAdapter"
ADAPTER_PLURAL: Final = "loraadapters"
ADAPTER_SHORT: Final = "lora"

POOL_KIND: Final = "EnginePool"
POOL_PLURAL: Final = "enginepools"
POOL_SHORT: Final = "lpool"

GRANT_KIND: Final = "AdapterGrant"
GRANT_PLURAL: Final = "adaptergrants"
GRANT_SHORT: Final = "lgrant"

FINALIZER: Final = f"{GROUP}/unload"
"""Held on an adapter until every engine that still exists has unloaded it."""

LABEL_ENGINE_POOL: Final = f"{GROUP}/engine-pool"
"""Suggested label of engine pods: the name of their EnginePool."""

LABEL_BASE_MODEL: Final = f"{GROUP}/base-model"
"""Suggested label of engine pods: their base model, in a form that labels allow."""

LABEL_CORDONED: Final = f"{GROUP}/cordoned"
"""Value "true" on an engine pod: it keeps the adapters that it has and gets no new ones."""

LABEL_ROUTES_TO: Final = f"{GROUP}/routes-to"
"""On each Service, EndpointSlice and HTTPRoute of ours: `adapter` or `pool`, whose it is."""

LABEL_DRAIN: Final = f"{GROUP}/drain"
"""Value "true" on an engine pod: other engines take its adapters over; then it gets no traffic."""

CONDITION_WARM: Final = f"{GROUP}/warm"
"""Readiness gate of engine pods, and the type of the pod condition that the operator sets for it."""

ANNOTATION_PAUSED: Final = f"{GROUP}/paused"
"""Value "true" on an adapter: the operator observes and reports, and changes nothing."""

ANNOTATION_PREFIX: Final = GROUP
"""Prefix for what the operator's framework stores on objects."""

MAX_SERVED_NAME: Final = 253
MAX_STATUS_ENGINES: Final = 100
"""Longest list of engines in a status; counts beside the list stay exact (etcd limits objects)."""
MAX_STATUS_TENANTS: Final = 50
"""Longest list of tenants in a pool's status."""


def default_served_name(namespace: str, name: str) -> str:
    """Return what clients send as `model` unless spec.servedName says otherwise."""
    return f"{namespace}/{name}"


def owner_of(served_name: str) -> str:
    """Return the namespace that owns such a name if there is one of that name, "" for nobody's."""
    prefix, slash, _ = served_name.partition("/")
    return prefix if slash else ""


def pool_key(namespace: str, name: str) -> str:
    """Return what identifies a pool: also one that does not exist, which adapters may name."""
    return f"{namespace}/{name}"


def served_name_problem(name: str) -> str | None:
    """Return why `name` cannot be served, in one line, or None. Same rule as the CRD's."""
    from lorafleet import pinned_names  # here: `kubectl lora` needs the constants alone

    if not 1 <= len(name) <= MAX_SERVED_NAME:
        return f"invalid adapter name: has {len(name)} characters, expected 1 to {MAX_SERVED_NAME}"
    if any(unicodedata.category(char) in _UNPRINTABLE for char in name):
        return f"invalid adapter name: {name!r} has characters that cannot be printed"
    if name != name.strip():
        return f"invalid adapter name: {name!r} begins or ends with a space"
    if name.startswith("/"):
        return f"invalid adapter name: {name!r} begins with /"
    if ".." in name.split("/"):
        return f"invalid adapter name: {name!r} has a .. segment"
    if pinned_names.parse(name) is not None:
        return f"invalid adapter name: {name!r} ends in @ and a digest, which names a revision"
    return None


def relative_path_problem(path: str) -> str | None:
    """Return why `path` is not a path below a root, in one line, or None. Same as the CRD's."""
    if path.startswith("/"):
        return f"path {path!r} begins with /, expected a relative path"
    if ".." in path.split("/"):
        return f"path {path!r} has a .. segment, expected a path below the volume's root"
    if any(unicodedata.category(char) in _UNPRINTABLE for char in path):
        return f"path {path!r} has characters that cannot be printed"
    return None


# Control, format, surrogate, private use, line and paragraph separators.
_UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def short(digest: str) -> str:
    """Return the digest as people are shown it in messages."""
    return digest[: len("sha256:") + 12]
