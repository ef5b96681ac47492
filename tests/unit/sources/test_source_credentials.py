"""Secrets: every documented key, every missing key, and no value in any text."""

import pytest
from lorafleet.errors import AccessDenied
from lorafleet_operator.sources.credentials import read_secret

CANARY = "canary-5f3a9c"


def secret(**data: str):
    found = read_secret("keys", {key: value.encode() for key, value in data.items()}, "team-a")
    assert found is not None
    return found


def test_without_a_reference_there_are_no_credentials() -> None:
    assert read_secret(None, None, "team-a") is None


def test_a_referenced_secret_that_is_gone_is_an_error_not_anonymous_access() -> None:
    with pytest.raises(AccessDenied, match=r"^Secret team-a/keys not found$"):
        read_secret("keys", None, "team-a")


@pytest.mark.parametrize(
    "names",
    [
        ("accessKeyID", "secretAccessKey", "sessionToken"),
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    ],
)
def test_both_spellings_of_the_s3_keys_work(names: tuple[str, str, str]) -> None:
    keys = secret(**dict(zip(names, ("id", "key\n", "token"), strict=True))).s3()
    assert keys is not None
    assert (keys.access_key_id, keys.secret_access_key, keys.session_token) == (
        "id",
        "key",
        "token",
    )


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        ({"accessKeyID": "id"}, "secretAccessKey"),
        ({"secretAccessKey": CANARY}, "accessKeyID"),
        ({"accessKeyID": "id", "secretAccessKey": "  "}, "secretAccessKey"),
        ({"sessionToken": CANARY, "caBundle": "pem"}, "accessKeyID"),
        ({}, "accessKeyID"),
    ],
)
def test_a_missing_s3_key_is_named(data: dict[str, str], missing: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        secret(**data).s3()
    assert str(caught.value) == f"Secret team-a/keys lacks key {missing}"


def test_http_sends_a_token_as_bearer_and_a_user_as_basic() -> None:
    assert secret(token="abc").authorization() == "Bearer abc"
    assert secret(username="u", password="p").authorization() == "Basic dTpw"
    assert secret(caBundle="pem").authorization() is None


def test_http_names_the_missing_keys() -> None:
    with pytest.raises(AccessDenied, match="lacks key token"):
        secret(other="x").authorization()
    with pytest.raises(AccessDenied, match="lacks key password"):
        secret(username="u").authorization()


@pytest.mark.parametrize("value", [f"{CANARY}\nX-Injected: 1", f"{CANARY}\x00"])
def test_a_value_that_would_split_a_header_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        secret(token=value).authorization()
    assert CANARY not in str(caught.value)
    assert str(caught.value) == "Secret team-a/keys key token is not one line of text"


def test_bytes_that_are_no_text_are_refused_and_not_chained() -> None:
    found = read_secret("keys", {"token": b"\xff" + CANARY.encode()}, "team-a")
    assert found is not None
    with pytest.raises(AccessDenied) as caught:
        found.authorization()
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_no_value_shows_in_a_repr() -> None:
    keys = secret(accessKeyID=CANARY, secretAccessKey=CANARY, sessionToken=CANARY, token=CANARY)
    assert CANARY not in repr(keys)
    assert CANARY not in repr(keys.s3())
