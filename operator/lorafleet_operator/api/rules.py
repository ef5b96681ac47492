"""The CEL rules of the custom resources.

The API server evaluates them at every write, so a person learns at once what is wrong. Each rule
carries the text that this person sees: what was found wrong and what to write instead.
`Rule.schema()` is the entry of `x-kubernetes-validations`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from lorafleet import pinned_names

# RE2 classes of characters that nobody can see; names.py holds the same rule for Python.
_PRINTABLE: Final = r"^[^\\p{C}\\p{Zl}\\p{Zp}]*$"


OCI_PATTERN: Final = (
    "^[a-zA-Z0-9.-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    "(:[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}(@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})$"
)
"""Registry, repository, then a tag or a digest, or both."""


@dataclass(frozen=True)
class Rule:
    """One CEL expression over `self` (and `oldSelf`) and the message of its refusal."""

    rule: str
    message: str

    def schema(self) -> dict[str, str]:
        """Return the entry for `x-kubernetes-validations`."""
        return {"rule": self.rule, "message": self.message}


def validations(*rules: Rule) -> dict[str, Any]:
    """Return the schema keyword that holds `rules`, for json_schema_extra."""
    return {"x-kubernetes-validations": [rule.schema() for rule in rules]}


BASE_MODEL_IMMUTABLE: Final = Rule(
    "self == oldSelf",
    "baseModel cannot be changed; delete this object and create a new one for the other base model",
)

NAME_FITS: Final = Rule(
    "has(self.spec.servedName) || size(self.metadata.name) <= 189",
    "invalid adapter name: <namespace>/<name> may exceed 253 characters; set spec.servedName",
)

SERVED_NAME_LENGTH: Final = Rule(
    "size(self) >= 1 && size(self) <= 253",
    "invalid adapter name: servedName must have 1 to 253 characters",
)
SERVED_NAME_PRINTABLE: Final = Rule(
    f"self.matches('{_PRINTABLE}') && self == self.trim()",
    "invalid adapter name: servedName must be printable, without a space at its ends",
)
SERVED_NAME_PATH: Final = Rule(
    "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
    "invalid adapter name: servedName must not begin with / nor hold a .. segment",
)
SERVED_NAME_PINS_NOTHING: Final = Rule(
    f"!self.matches('{pinned_names.PATTERN}')",
    "invalid adapter name: servedName must not end in @ and a digest: that names one revision",
)

ONE_SOURCE: Final = Rule(
    "[has(self.s3), has(self.gcs), has(self.azureBlob), has(self.http), has(self.huggingFace),"
    " has(self.oci), has(self.persistentVolumeClaim), has(self.push)]"
    ".filter(present, present).size() == 1",
    "give exactly one of source.s3, source.gcs, source.azureBlob, source.http, "
    "source.huggingFace, source.oci, source.persistentVolumeClaim and source.push",
)
NEEDS_NO_SECRET: Final = Rule(
    "!(has(self.persistentVolumeClaim) || has(self.push)) || !has(self.credentialsSecretRef)",
    "credentialsSecretRef has no use with persistentVolumeClaim and push; remove it",
)

ADAPTER_NAME: Final = Rule(
    "self.matches('^[^.]+$')",
    "adapterName is one segment of the tensor names, as in lora_A.<adapterName>.weight: no dots",
)
OCI_REFERENCE: Final = Rule(
    f"self.matches('{OCI_PATTERN}')",
    "must be registry/repository:tag or registry/repository@sha256:<64 hex digits>",
)
NO_PARENT_SEGMENT: Final = Rule(
    "!self.contains('..')",
    "must not hold ..",
)

RELATIVE_PATH: Final = Rule(
    "!self.startsWith('/') && !self.split('/').exists(part, part == '..')",
    "must be a relative path without .. segments",
)
PRINTABLE: Final = Rule(f"self.matches('{_PRINTABLE}')", "must hold printable characters only")

HTTP_URL: Final = Rule(
    "isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHostname() != ''",
    "must be a URL such as https://host/path",
)
NO_USER_IN_URL: Final = Rule(
    "!self.matches('^[a-zA-Z]+://[^/?#]*@')",
    "must not hold a user or password; put them into the Secret of source.credentialsSecretRef",
)

REPLICAS_NEED_A_CHOICE: Final = Rule(
    "!has(self.replicas) || self.policy in ['Spread', 'BinPack']",
    "placement.replicas is for policies Spread and BinPack; policy All takes every engine of the pool,"
    " and OnDemand those that requests ask",
)
IDLE_NEEDS_ON_DEMAND: Final = Rule(
    "!has(self.idleSeconds) || self.policy == 'OnDemand'",
    "placement.idleSeconds is for policy OnDemand",
)
PINNED_IS_GPU: Final = Rule(
    "!has(self.pinned) || !self.pinned || !has(self.residency) || self.residency == 'gpu'",
    "pinned: true means residency: gpu; remove one of the two, or say gpu",
)

_SHARE: Final = "type(self) == int ? self >= {least} && self <= 1000000 : self.matches('{percent}')"
SHARE: Final = Rule(
    _SHARE.format(least=0, percent="^(100|[1-9]?[0-9])%$"),
    "must be a number of engines such as 1, or a percentage of them such as 25%",
)
SHARE_OF_AT_LEAST_ONE: Final = Rule(
    _SHARE.format(least=1, percent="^(100|[1-9][0-9]?)%$"),
    "must be a number of engines from 1, or a percentage of them from 1%",
)
ERROR_RATE: Final = Rule(
    "type(self) == int ? self >= 0 && self <= 100"
    " : self.matches('^(100|[1-9]?[0-9](\\\\.[0-9]{1,3})?)%?$')",
    "must be a percentage of the requests such as 5% or 0.5%",
)
ROLLOUT_CAN_MOVE: Final = Rule(
    "!([self.maxSurge, self.maxUnavailable].all(share,"
    " type(share) == int ? share == 0 : share == '0%'))",
    "maxSurge and maxUnavailable cannot both be 0: no engine could ever change its revision",
)

ATOMIC_ALONE: Final = Rule(
    "!has(self.atomic) || !self.atomic || (!has(self.canary) && self.maxSurge == '100%'"
    " && (self.maxUnavailable == 0 || self.maxUnavailable == '0%'))",
    "atomic: true changes all engines at once: leave canary out, maxSurge at 100%,"
    " and maxUnavailable at 0",
)

ROUTE_CHOOSES: Final = Rule(
    "has(self.modelHeader) || has(self.hostname)",
    "httpRoute needs hostname or modelHeader; without both it would take every request to the Gateway",
)

RECYCLE_NEEDS_A_BOUND: Final = Rule(
    "has(self.maxHostGrowthPerLoad) || has(self.maxLoads)",
    "recycle needs maxHostGrowthPerLoad or maxLoads, or both",
)

MAX_WAIT_NEEDS_SAFE_POINT: Final = Rule(
    "!has(self.maxWaitSeconds) || self.when == 'SafePoint'",
    "recycle.maxWaitSeconds is for when: SafePoint",
)

SELECTOR_NOT_EMPTY: Final = Rule(
    "size(self) >= 1",
    "selector.matchLabels needs at least one label; an empty one would take every pod",
)
POSITIVE_QUANTITY: Final = Rule(
    "type(self) == int ? self > 0"
    " : isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    "must be a positive quantity of bytes such as 8Gi",
)

ONE_NAMESPACE_SELECTOR: Final = Rule(
    "(has(self.names) && size(self.names) > 0)"
    " != (has(self.matchLabels) && size(self.matchLabels) > 0)",
    "give exactly one of namespaceSelector.names and namespaceSelector.matchLabels",
)
ARENA_SHARE: Final = Rule(
    "type(self) == int ? self > 0"
    " : self.matches('^([1-9][0-9]?|100)%$')"
    " || (isQuantity(self) && quantity(self).isGreaterThan(quantity('0')))",
    "must be a positive quantity of bytes such as 8Gi, or a share from 1% to 100%",
)
TENANT_SELECTOR: Final = Rule(
    "has(self.namespaceSelector) != (self.name == '*')",
    "a tenant needs a namespaceSelector; * is for all other namespaces and has none",
)
NO_GUARANTEE_FOR_ALL: Final = Rule(
    "self.name != '*' || !has(self.guarantee)",
    "tenant * can have no guarantee: it stands for any number of namespaces",
)
