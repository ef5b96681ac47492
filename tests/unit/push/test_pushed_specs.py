"""What the API server's refusals of an adapter are to a trainer."""

from __future__ import annotations

import json

import pytest
from kubernetes.aio.client import ApiException
from lorafleet.errors import InvalidAdapter, LorafleetError, SourceUnavailable
from lorafleet_operator.cluster.pushed_specs import _refused

WHAT = 'loraadapters.lorafleet.dev "rl" is forbidden: '
ENDING = f"{WHAT}unable to create new content in namespace a because it is being terminated"
QUOTA = (
    f"{WHAT}exceeded quota: few, requested: count/loraadapters.lorafleet.dev=1, used: 5, limited: 5"
)
RIGHTS = (
    'loraadapters.lorafleet.dev is forbidden: User "system:serviceaccount:x:operator" cannot create '
    'resource "loraadapters" in API group "lorafleet.dev" in the namespace "a"'
)


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (403, ENDING, InvalidAdapter),
        (403, QUOTA, InvalidAdapter),
        (403, RIGHTS, SourceUnavailable),
        (422, "spec.pool: \n must not", InvalidAdapter),
        (404, "gone", InvalidAdapter),
        (429, "slow down", SourceUnavailable),
        (500, "x" * 9999, SourceUnavailable),
    ],
)
def test_what_a_trainer_can_mend_is_its_own_and_the_rest_may_pass(
    status: int, said: str, kind: type[LorafleetError]
) -> None:
    found = _refused(ApiException(status=status, body=json.dumps({"message": said})))
    assert type(found) is kind
    assert " ".join(said.split())[:500] in str(found)
    assert len(str(found)) < 600
