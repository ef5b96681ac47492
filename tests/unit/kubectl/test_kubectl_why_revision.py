"""`kubectl lora why` of an adapter whose spec names a revision that is gone."""

from __future__ import annotations

from lorafleet_operator.explain import Why
from lorafleet_operator.kubectl.why import Told, to_text
from operator_builders import DIGEST, OLD, adapter


def test_what_is_served_is_not_called_wanted_while_the_spec_names_another_revision() -> None:
    status = {
        "digest": DIGEST,
        "desiredEngines": 1,
        "engines": [{"podName": "e-0", "digest": DIGEST, "published": True, "tier": "gpu"}],
    }
    for revision, head, has in (
        (None, DIGEST[:19], "wanted, served"),
        (OLD, OLD[:19], f"{DIGEST[:19]}, served"),
    ):
        given = adapter(status=status, **({"revision": revision} if revision else {}))
        lines = to_text(Told(Why(given, None, None)))
        assert lines[1] == f"revision {head}, 0 of 1 engines serve it"
        assert has in next(line for line in lines if line.startswith("e-0"))
