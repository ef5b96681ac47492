"""Bytes by tier and namespace, whatever lies in an arena."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_sidecar.residents import (
    NAMESPACES_SHOWN,
    OTHERS,
    displaced,
    revision_bytes,
    tiers,
)

LABELS = {pb.TIER_GPU: "gpu", pb.TIER_HOST: "host", pb.TIER_STAGED: "staged"}
BEST = tuple(LABELS)


@st.composite
def inventories(draw: st.DrawFn) -> pb.Inventory:
    count = draw(st.integers(0, 60))
    numbers = st.integers(0, 40)
    staged = [
        pb.StagedRevision(
            digest=f"d{index}",
            adapter=f"ns-{draw(numbers)}/a{index}",
            size_bytes=draw(st.integers(1, 9)),
        )
        for index in range(count)
    ]
    loaded = [
        pb.LoadedAdapter(
            digest=f"d{draw(st.integers(0, count - 1))}", tier=draw(st.sampled_from(BEST))
        )
        for _ in range(draw(st.integers(0, 80)) if count else 0)
    ]
    return pb.Inventory(staged=staged, loaded=loaded)


@given(inventories())
def test_every_byte_counts_once_under_its_best_tier_and_the_labels_stay_few(
    inventory: pb.Inventory,
) -> None:
    found = dict(revision_bytes(inventory))
    assert sum(found.values()) == sum(each.size_bytes for each in inventory.staged)
    namespaces = {namespace for _, namespace in found}
    assert len(namespaces - {OTHERS}) <= NAMESPACES_SHOWN
    owners = {each.adapter.partition("/")[0] for each in inventory.staged}
    assert (OTHERS in namespaces) == (len(owners) > NAMESPACES_SHOWN)
    for tier, label in LABELS.items():
        better = BEST[: BEST.index(tier)]
        expected = sum(
            each.size_bytes
            for each in inventory.staged
            if not any(e.digest == each.digest and e.tier in better for e in inventory.loaded)
            and (
                tier == pb.TIER_STAGED
                or any(e.digest == each.digest and e.tier == tier for e in inventory.loaded)
            )
        )
        assert sum(size for (named, _), size in found.items() if named == label) == expected


@given(inventories())
def test_each_loaded_revision_and_each_other_staged_one_has_one_tier(
    inventory: pb.Inventory,
) -> None:
    digests = {each.digest for each in inventory.loaded}
    others = sum(each.digest not in digests for each in inventory.staged)
    assert sum(count for _, count in tiers(inventory)) == len(inventory.loaded) + others


def test_a_kept_revision_that_is_served_from_elsewhere_is_displaced() -> None:
    loaded = [
        pb.LoadedAdapter(pinned=pinned, published=published, tier=tier)
        for pinned in (True, False)
        for published in (True, False)
        for tier in BEST
    ]
    assert displaced(pb.Inventory(loaded=loaded)) == 2
