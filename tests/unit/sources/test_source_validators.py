"""What headers say: versions and parts of files."""

import pytest
from lorafleet_operator.sources.validators import Part, Validator


@pytest.mark.parametrize(
    ("headers", "validator", "conditions"),
    [
        ({"ETag": '"a"', "Last-Modified": "x"}, Validator('"a"', None), {"If-Match": '"a"'}),
        (
            {"ETag": 'W/"a"', "Last-Modified": "x"},
            Validator(None, "x"),
            {},
        ),
        ({"ETag": 'W/"a"'}, Validator(None, None), {}),
        (
            {"ETag": '"a"', "Last-Modified": "x", "x-goog-generation": "17"},
            Validator('"a"', None, "17"),
            {"If-Match": '"a"'},
        ),
        ({}, Validator(None, None), {}),
    ],
)
def test_the_strongest_validator_is_taken_and_a_weak_etag_never(
    headers: dict[str, str], validator: Validator, conditions: dict[str, str]
) -> None:
    assert Validator.of(headers) == validator
    assert validator.conditions() == conditions
    assert bool(validator) == ("Last-Modified" in headers)


@pytest.mark.parametrize(
    ("status", "headers", "part"),
    [
        (200, {"Content-Length": "10"}, Part(0, 10, 10)),
        (200, {}, Part(0, None, None)),
        (200, {"Content-Length": "-1"}, None),
        (200, {"Content-Length": "9" * 30}, None),
        (206, {"Content-Range": "bytes 2-5/10"}, Part(2, 6, 10)),
        (206, {"Content-Range": "bytes 5-2/10"}, None),
        (206, {"Content-Range": "bytes 2-10/10"}, None),
        (206, {"Content-Range": "bytes 2-5/*"}, None),
        (206, {"Content-Range": "pages 2-5/10"}, None),
        (206, {}, None),
        (416, {"Content-Range": "bytes */0"}, Part(0, 0, 0)),
    ],
)
def test_a_part_that_makes_no_sense_is_none(
    status: int, headers: dict[str, str], part: Part | None
) -> None:
    assert Part.of(status, headers) == part
