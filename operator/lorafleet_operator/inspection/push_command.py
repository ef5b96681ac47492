"""`lorafleet push NAME DIR`: one revision from a folder, and what becomes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorafleet.arguments import whole
from lorafleet.push import Fleet
from lorafleet.push.connection import PROJECTED_TOKEN

if TYPE_CHECKING:
    import argparse

_MIB = 1 << 20


def add_verb(verbs: Any) -> argparse.ArgumentParser:
    """Add the verb's options; returns its parser."""
    verb: argparse.ArgumentParser = verbs.add_parser(
        "push", help="bring a folder of save_pretrained to a fleet as an adapter's next revision"
    )
    verb.add_argument("name", metavar="NAME", help="of the LoRAAdapter")
    verb.add_argument("folder", type=Path, metavar="DIR")
    verb.add_argument("--address", required=True, metavar="HOST:PORT", help="the push service")
    verb.add_argument("-n", "--namespace", default="", help="by default the pod's own")
    verb.add_argument(
        "--token-file", type=Path, default=PROJECTED_TOKEN, metavar="FILE",
        help="token of a ServiceAccount that may push, by default %(default)s",
    )  # fmt: skip
    verb.add_argument(
        "--ca", type=Path, metavar="FILE", help="what signed the service's certificate"
    )
    verb.add_argument(
        "--step", type=whole(0), default=0, metavar="N", help="the trainer's own count"
    )
    verb.add_argument("--base-model", default="", metavar="NAME", help="to make the adapter with")
    verb.add_argument("--pool", default="", metavar="NAME", help="to make the adapter with")
    verb.add_argument("--wait", action="store_true", help="until every engine serves it")
    verb.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help="for --wait")
    return verb


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Push; returns what the revision is. Raises LorafleetError."""
    with Fleet(
        options.address, options.namespace, token=options.token_file, ca=options.ca
    ) as fleet:
        revision = fleet.push(
            options.folder,
            name=options.name,
            step=options.step,
            base_model=options.base_model,
            pool=options.pool,
            progress=_show if sys.stderr.isatty() else _silent,
        )
        assert revision is not None, "only models of a distributed training have nothing to send"
        if options.wait:
            revision.wait(timeout=options.timeout)
        return {
            "servedName": revision.served_name,
            "revision": revision.revision,
            "step": revision.step,
            "sentBytes": revision.sent_bytes,
            "unchanged": revision.unchanged,
            "served": options.wait,
        }


def as_text(found: dict[str, Any]) -> str:
    """Return the line for people."""
    state = "served by every engine" if found["served"] else "pushed"
    sent = "unchanged" if found["unchanged"] else f"{found['sentBytes'] / _MIB:.1f} MiB sent"
    return f"{found['servedName']}: {found['revision']} {state}, {sent}"


def _show(sent: int, of: int) -> None:
    print(
        f"\r{sent / _MIB:.1f} of {of / _MIB:.1f} MiB",
        end="\n" if sent == of else "",
        file=sys.stderr,
    )


def _silent(_sent: int, _of: int) -> None:
    pass
