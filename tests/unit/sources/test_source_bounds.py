"""The limits: which addresses, names and paths a source may use."""

import pytest
from lorafleet.errors import PathNotAllowed
from lorafleet_operator.sources.bounds import (
    SourceSettings,
    checked_object_name,
    checked_relative_path,
    forbidden_kind,
)

DEFAULT = SourceSettings()


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.0.3", "loopback"),
        ("0.0.0.0", "loopback"),
        ("0.1.2.3", "loopback"),
        ("::1", "loopback"),
        ("::", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("2002:7f00:1::", "loopback"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fd00:ec2::254", "metadata"),
        ("100.100.100.200", "metadata"),
        ("168.63.129.16", "metadata"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
    ],
)
def test_addresses_that_answer_with_the_nodes_own_secrets_are_forbidden(
    address: str, kind: str
) -> None:
    assert forbidden_kind(address, DEFAULT) == kind


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.2", "52.1.2.3", "2a00::1", "fd12::3"])
def test_addresses_of_clusters_and_the_internet_are_allowed(address: str) -> None:
    assert forbidden_kind(address, DEFAULT) is None


def test_denied_networks_hold_even_where_private_addresses_are_allowed() -> None:
    settings = SourceSettings(allow_private_addresses=True, denied_networks=("10.96.0.0/12",))
    assert forbidden_kind("127.0.0.1", settings) is None
    assert forbidden_kind("10.96.0.1", settings) == "denied (10.96.0.0/12)"
    assert forbidden_kind("::ffff:10.96.0.1", settings) == "denied (10.96.0.0/12)"


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../b",
        "/etc",
        "a//b",
        "./a",
        "a/.",
        "a\x00b",
        "a\nb",
        "a\\..\\b",
        "a\u2028b",
        "a\x85b",
    ],
)
def test_a_path_that_could_leave_its_folder_is_refused(path: str) -> None:
    with pytest.raises(PathNotAllowed, match="source"):
        checked_relative_path(path, "source")


@pytest.mark.parametrize(
    ("path", "clean"),
    [("", ""), ("a", "a"), ("a/b/", "a/b"), ("..a/b..", "..a/b.."), ("a\xa0b/ü", "a\xa0b/ü")],
)
def test_a_relative_path_is_kept(path: str, clean: str) -> None:
    assert checked_relative_path(path, "source") == clean


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "A", "-a", "a\n", "a" * 300])
def test_a_claim_or_namespace_is_one_component_of_a_path(name: str) -> None:
    with pytest.raises(PathNotAllowed):
        checked_object_name(name, "claim")
