"""Names of Services: DNS labels, and no two alike."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from lorafleet_operator.routing.names import Role, service_name, slice_name

OWNERS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,60}[a-z0-9])?(\.[a-z0-9]{1,60}){0,3}", fullmatch=True)


def test_a_name_that_will_do_is_kept() -> None:
    assert service_name(Role.ADAPTER, "pirate") == "lora-pirate"
    assert service_name(Role.CANARY, "pirate") == "canary-lora-pirate"
    assert service_name(Role.POOL, "smollm2") == "lorapool-smollm2"


def test_another_is_made_readable_and_ends_in_a_hash() -> None:
    assert service_name(Role.ADAPTER, "a.b") == "lorax-a-b-2e7336dc8e"
    longest = service_name(Role.CANARY, "x" * 253)
    assert longest.startswith("canary-lorax-xxxx")
    assert len(longest) == 63


@given(OWNERS)
def test_every_name_is_a_label_of_the_dns(owner: str) -> None:
    for role in Role:
        name = service_name(role, owner)
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name), name


@given(OWNERS, OWNERS)
def test_no_two_owners_or_roles_share_a_name(one: str, other: str) -> None:
    names = [service_name(role, owner) for role in Role for owner in {one, other}]
    slices = [slice_name(name, family, 0) for name in names for family in ("IPv4", "IPv6")]
    assert len({*names, *slices}) == len(names) + len(slices)


def test_names_that_would_collide_if_they_were_only_joined() -> None:
    owners = ("pirate", "pirate-stable", "a-b", "a.b", "a.b-", "x-a-b-2e7336dc8e", "a-v6", "a-0")
    names = [service_name(role, owner) for role in Role for owner in owners]
    assert len(set(names)) == len(names)
