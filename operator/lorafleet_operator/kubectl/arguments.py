"""The verbs of `kubectl lora` and their flags; those that choose a cluster are kubectl's own."""

from __future__ import annotations

import argparse
from typing import Final

from lorafleet.arguments import Parser, whole

from lorafleet_operator.kubectl.rollback import SOURCE

CLUSTER_FLAGS: Final = (
    ("--kubeconfig", "FILE", "default: KUBECONFIG, ~/.kube/config"),
    ("--context", "NAME", "context of the kubeconfig; default: the current one"),
    ("--cluster", "NAME", "cluster of the kubeconfig"),
    ("--user", "NAME", "user of the kubeconfig"),
    ("--server", "URL", "address of the API server"),
    ("--as", "USER", "ask as this user"),
    ("--as-group", "GROUP", "ask as a member of this group; may be repeated"),
    ("--as-uid", "UID", "ask with this UID"),
)
SHELLS: Final = ("bash", "zsh", "fish")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_EPILOG: Final = "Exit status: 0 all is well, 1 an error or not Ready, 2 wrong arguments."


def parser() -> Parser:
    """Return the parser of all verbs."""
    found = Parser(
        prog="kubectl lora",
        description="Ask about LoRA adapters of a cluster.",
        epilog=_EPILOG,
        parents=[_cluster()],
        allow_abbrev=False,
    )
    found.set_defaults(namespace=None, request_timeout="10s")
    found.add_argument("--version", action="store_true", help="print the version")
    verbs = found.add_subparsers(dest="verb", metavar="VERB")

    def verb(name: str, text: str) -> Parser:
        return verbs.add_parser(name, parents=[_cluster()], help=text, allow_abbrev=False)

    top = verb("top", "engines and the busiest adapters, live")
    _output(top, "json", "yaml")
    _everywhere(top)
    top.add_argument("--once", action="store_true", help="print once and end")
    top.add_argument(
        "--interval", metavar="TIME", type=_seconds, default=2.0, help="between looks; default 2s"
    )
    top.add_argument(
        "--adapters", metavar="N", type=whole(1, 65535), default=20, help="how many; default 20"
    )
    top.add_argument("--no-live", action="store_true", help="ask no sidecar: statuses only")
    top.add_argument(
        "--metrics-port", metavar="PORT", type=whole(1, 65535), default=9464, help="of the sidecars"
    )

    ls = verb("ls", "the adapters of a namespace")
    _output(ls, "json", "yaml", "name", "wide")
    _everywhere(ls)
    ls.add_argument("-l", "--selector", default="", help="only adapters with these labels")
    ls.add_argument("--pool", default="", help="only adapters of this pool: NAME or NAMESPACE/NAME")
    ls.add_argument("-w", "--watch", action="store_true", help="go on with what changes")
    ls.add_argument("--no-headers", action="store_true", help="leave the first line out")

    why = verb("why", "why an adapter is where it is")
    _output(why, "json", "yaml")
    _name(why)

    history = verb("history", "the revisions of an adapter")
    _output(history, "json", "yaml", "name", "wide")
    _name(history)

    rollback = verb("rollback", "serve an earlier revision, and wait for it")
    _output(rollback, "json", "yaml", "name")
    _name(rollback)
    rollback.add_argument(
        "--to",
        metavar="REVISION",
        default="",
        help=f"beginning of a digest, or {SOURCE} for what the source holds; default: the one before",
    )
    rollback.add_argument("--no-wait", action="store_true", help="end when it is written")
    _timeout(rollback)
    rollback.add_argument("--dry-run", action="store_true", help="let the server check it only")

    push = verb("push", "bring a folder of save_pretrained as an adapter's next revision")
    _output(push, "json", "yaml", "name")
    _name(push)
    push.add_argument("folder", metavar="DIR", help="with adapter_model.safetensors and its config")
    push.add_argument(
        "--service-account", metavar="NAME", default="", help="of the namespace, to push as"
    )
    push.add_argument("--token-file", metavar="FILE", default="", help="a token to push with")
    push.add_argument(
        "--audience", default="lorafleet", help="of the account's token; default %(default)s"
    )
    push.add_argument(
        "--service",
        metavar="NAMESPACE/NAME",
        type=_service,
        default=("lorafleet-system", "lorafleet-push"),
        help="that takes pushes; default lorafleet-system/lorafleet-push",
    )
    push.add_argument(
        "--address",
        metavar="HOST:PORT",
        default="",
        help="of the service, where it can be reached; default: through the API server",
    )
    push.add_argument(
        "--ca-file", metavar="FILE", default="", help="what signed the service's certificate"
    )
    push.add_argument(
        "--step", metavar="N", type=whole(0), default=0, help="the trainer's own count"
    )
    push.add_argument("--base-model", metavar="NAME", default="", help="of a new adapter")
    push.add_argument("--pool", default="", help="of a new adapter: NAME or NAMESPACE/NAME")
    push.add_argument("--wait", action="store_true", help="until its engines serve it")
    _timeout(push)

    completion = verbs.add_parser("completion", help="a script that completes words in a shell")
    completion.add_argument("shell", choices=SHELLS)
    return found


def cluster_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags that choose a cluster and a user, as kubectl takes them."""
    found = []
    for flag, _, _ in CLUSTER_FLAGS:
        given = getattr(options, flag[2:].replace("-", "_"), None)
        values = given if isinstance(given, list) else [given]
        found += [f"{flag}={value}" for value in values if value is not None]
    return found


def _cluster() -> Parser:
    # Before the verb or behind it: what is not given at one place must not hide the other.
    found = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    group = found.add_argument_group("cluster, as for kubectl")
    group.add_argument("-n", "--namespace", help="default: that of the context")
    for flag, metavar, text in CLUSTER_FLAGS:
        also = ["-s"] if flag == "--server" else []
        action = "append" if flag == "--as-group" else "store"
        group.add_argument(*also, flag, metavar=metavar, help=text, action=action)
    group.add_argument("--request-timeout", metavar="TIME", help="of one answer; default 10s")
    return found


def _output(verb: argparse.ArgumentParser, *formats: str) -> None:
    verb.add_argument("-o", "--output", choices=("text", *formats), default="text")


def _everywhere(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("-A", "--all-namespaces", action="store_true", help="of every namespace")


def _name(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME", help="name of the LoRAAdapter")


def _timeout(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--timeout",
        metavar="TIME",
        type=_seconds,
        default=300.0,
        help="how long to wait; default 5m",
    )


def _service(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAMESPACE/NAME of a Service")
    return namespace, name


def _seconds(text: str) -> float:
    """Return a time above 0, given as seconds or as kubectl takes it: 90, 90s, 1.5m, 1h."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in tuple(_UNITS) else (text, "s")
    try:
        found = float(number) * _UNITS[unit]
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0, such as 90s or 5m")
    return found
