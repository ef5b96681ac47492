"""`kubectl lora push` before there is a cluster: its words, what it shows, and where it finds things."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from lorafleet.errors import InvalidAdapter, SourceNotFound
from lorafleet_operator.kubectl import arguments, push
from lorafleet_operator.kubectl.api import Failed
from lorafleet_operator.kubectl.screen import Progress, Screen
from pushing import Content, folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SERVICE = ("lorafleet-system", "lorafleet-push")
CORE = "/api/v1/namespaces/lorafleet-system"
MIB = 1 << 20


class Answers:
    """An API server that knows these objects; what it was asked to make is in `posted`."""

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.known = known
        self.posted: list[tuple[str, Any]] = []

    def get(self, place: str) -> Any:
        found = self.known.get(place, "NotFound")
        if isinstance(found, str):
            raise Failed(f"{place} {found}", found)
        return {"data": found}

    def post(self, place: str, body: Any) -> Any:
        self.posted.append((place, body))
        return {"status": {"token": f"token-{len(self.posted)}"}}


def shown(steps: list[tuple[int, int]], *, live: bool) -> str:
    out = io.StringIO()
    show = push.sent(Progress(Screen(out, live=live, colour=False)))
    for done, of in steps:
        show(done, of)
    return out.getvalue()


def test_words_of_the_command() -> None:
    options = arguments.parser().parse_args(["push", "sql", "./made"])
    assert (options.service, options.audience, options.wait) == (SERVICE, "lorafleet", False)
    words = ["push", "-n", "a", "sql", "./made", "--service", "ops/take", "--timeout", "2m"]
    options = arguments.parser().parse_args(words)
    assert (options.service, options.timeout, options.namespace) == (("ops", "take"), 120, "a")


@pytest.mark.parametrize("given", ["take", "/take", "ops/", "a/b/c", ""])
def test_what_is_no_service_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments.parser().parse_args(["push", "sql", "./made", f"--service={given}"])
    assert ended.value.code == 2
    assert f"{given!r} is no NAMESPACE/NAME of a Service" in capsys.readouterr().err


def test_lines_that_stay_come_for_each_tenth_and_a_bar_for_each_piece() -> None:
    steps = [(4 * MIB * n, 400 * MIB) for n in range(101)]
    lines = shown(steps, live=False).splitlines()
    assert lines[0] == "0B/400.0Mi sent"
    assert lines[1] == "40.0Mi/400.0Mi sent"
    assert lines[-1] == "400.0Mi/400.0Mi sent"
    assert len(lines) == 11
    drawn = shown(steps, live=True)
    assert drawn.count("\r") == 101
    assert "\r[##########----------] 200.0Mi/400.0Mi sent" in drawn
    assert shown([(0, 0)], live=True) == "", "nothing to send is nothing to show"
    push.sent(None)(1, 2)


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({f"{CORE}/configmaps/lorafleet-push-ca": {"ca.crt": "PEM"}}, b"PEM"),
        (
            {f"{CORE}/secrets/lorafleet-push-tls": {"ca.crt": base64.b64encode(b"PEM").decode()}},
            b"PEM",
        ),
        (
            {
                f"{CORE}/configmaps/lorafleet-push-ca": "Forbidden",
                f"{CORE}/secrets/lorafleet-push-tls": {"ca.crt": "UEVN", "tls.key": "no"},
            },
            b"PEM",
        ),
    ],
)
def test_what_signed_the_certificate_is_in_a_configmap_or_else_the_secret(
    known: Any, found: bytes
) -> None:
    assert push.authority(Answers(known), SERVICE) == found  # type: ignore[arg-type]


def test_what_cannot_be_read_is_named_and_a_silent_cluster_is_not_asked_again() -> None:
    known = {
        f"{CORE}/configmaps/lorafleet-push-ca": {},
        f"{CORE}/secrets/lorafleet-push-tls": "Forbidden",
    }
    with pytest.raises(Failed) as refused:
        push.authority(Answers(known), SERVICE)  # type: ignore[arg-type]
    assert str(refused.value) == (
        "what signed the certificate of service lorafleet-system/lorafleet-push cannot be read "
        "(ConfigMap lorafleet-push-ca: no ca.crt in it; Secret lorafleet-push-tls: Forbidden): "
        "give --ca-file FILE"
    )
    silent = Answers({f"{CORE}/configmaps/lorafleet-push-ca": "Silent"})
    with pytest.raises(Failed, match="Silent"):
        push.authority(silent, SERVICE)  # type: ignore[arg-type]


def test_one_token_of_the_account_serves_many_calls() -> None:
    cluster = Answers({})
    way = push.Way(SERVICE, service_account="trainer", audience="lorafleet")
    tokens = push.token_source(cluster, "demo", way)  # type: ignore[arg-type]
    assert callable(tokens)
    assert [tokens(), tokens()] == ["token-1", "token-1"]
    ((place, body),) = cluster.posted
    assert place == "/api/v1/namespaces/demo/serviceaccounts/trainer/token"
    assert body["spec"] == {"audiences": ["lorafleet"], "expirationSeconds": 3600}
    for wrong in ("../x", "a/b", "A"):
        with pytest.raises(Failed, match="is no name of an object"):
            push.token_source(cluster, "demo", push.Way(SERVICE, service_account=wrong))  # type: ignore[arg-type]


def test_a_folder_is_checked_before_anything_is_asked(tmp_path: Path) -> None:
    made = folder(tmp_path / "made", Content.of(1, 2))
    assert push.checked(str(made), "sql") == made
    for uri in ("s3://bucket/sql", "hf://org/sql", "https://host/sql"):
        with pytest.raises(Failed, match="what lies in a store needs no push: name it in "):
            push.checked(uri, "sql")
    with pytest.raises(Failed, match="is no folder"):
        push.checked(str(made / "adapter_config.json"), "sql")
    with pytest.raises(SourceNotFound, match=r"adapter_config.json does not exist"):
        push.checked(str(tmp_path), "sql")
    config = json.loads((made / "adapter_config.json").read_text())
    (made / "adapter_config.json").write_text(json.dumps({**config, "r": "two"}))
    with pytest.raises(InvalidAdapter, match="r "):
        push.checked(str(made), "sql")


def test_neither_torch_nor_the_operators_own_packages_are_needed() -> None:
    code = "import sys\nfrom lorafleet_operator.kubectl import push\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name.partition(".")[0] for name in run.stdout.split()}
    assert not found & {"torch", "numpy", "pydantic", "kubernetes", "kopf", "aiohttp", "peft"}
