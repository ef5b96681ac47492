"""`kubectl lora VERB`: arguments, formats, exit statuses, and one line for each error."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from lorafleet_operator.api import names
from lorafleet_operator.kubectl import api, arguments, ls
from lorafleet_operator.kubectl.screen import Progress, Screen
from lorafleet_operator.kubectl.text import Table, printable, size
from lorafleet_operator.kubectl.views import VERSION

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

_RESOURCE: Final = f"loraadapter.{names.GROUP}"


def main(given: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name; return the exit status."""
    parser = arguments.parser()
    options = parser.parse_args(given)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:  # a terminal of another alphabet shows escapes
        reconfigure(errors="backslashreplace")
    if options.version:
        return _version()
    if options.verb is None:
        parser.print_help()
        return 2
    try:
        status = _VERBS[options.verb](options)
        sys.stdout.flush()
    except api.Failed as error:
        return _complain(str(error))
    except ModuleNotFoundError as error:
        return _complain(f"{error.name} is missing: pip install 'lorafleet[operator]'")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _complain(text: str) -> int:
    print(f"kubectl lora: {printable(text)}", file=sys.stderr)
    return 1


def _version() -> int:
    from importlib.metadata import version

    print(f"kubectl lora {version('lorafleet')}")
    return 0


def _kubectl(options: argparse.Namespace) -> api.Kubectl:
    return api.Kubectl(arguments.cluster_flags(options), options.request_timeout)


def _namespace(kubectl: api.Kubectl, options: argparse.Namespace) -> str:
    """Return the namespace that is asked about, "" for all."""
    if getattr(options, "all_namespaces", False):
        return ""
    return options.namespace or kubectl.namespace()


def _tell(document: Mapping[str, Any], output: str) -> None:
    """Print a document for programs."""
    if output == "json":
        print(_json(document, 2))
    else:
        import yaml

        print(yaml.safe_dump(document, sort_keys=False), end="")


def _json(document: object, indent: int | None = None) -> str:
    """Return it in ASCII, without the one control character that JSON leaves as it is."""
    return json.dumps(document, indent=indent).replace("\x7f", "\\u007f")


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def _ls(options: argparse.Namespace) -> int:
    kubectl, output = _kubectl(options), options.output
    if options.watch and output == "yaml":
        return _complain("--watch prints lines or, with -o json, an object a line; not yaml")
    namespace = _namespace(kubectl, options)
    shape = {"everywhere": not namespace, "wide": output == "wide"}
    screen = Screen.of(sys.stdout)
    table = Table(ls.head(**shape), colour=screen.colour, headed=not options.no_headers)
    version, count = "", 0
    for page in ls.pages(kubectl, namespace, options.pool, options.selector):
        version, found = page
        if output in ("json", "yaml") and not options.watch:
            _part(found, output, first=count == 0)
        elif output == "json":
            _say(_json({"type": "ADDED", "adapter": each}) for each in found)
        elif output == "name":
            _say(printable(f"{_RESOURCE}/{each['name']}") for each in found)
        elif found:
            _say(table.lines(ls.row(each, **shape) for each in found))
        count += len(found)
    if output == "json" and not options.watch:
        print("\n  ]\n}" if count else _empty("json"))
    elif output == "yaml" and not count:
        print(_empty("yaml"))
    elif not count and output != "json":
        where = f"namespace {namespace}" if namespace else "any namespace"
        print(f"no adapters found in {where}", file=sys.stderr)
    sys.stdout.flush()
    if options.watch:
        for kind, each in ls.changes(kubectl, namespace, version, options.pool, options.selector):
            if output == "json":
                print(_json({"type": kind, "adapter": each}), flush=True)
            elif output == "name":
                print(printable(f"{_RESOURCE}/{each['name']}"), flush=True)
            else:
                row = ls.row(each, **shape)
                gone = [*row[:-1], "deleted"] if kind == "DELETED" else row
                print("\n".join(table.lines([gone])), flush=True)
    return 0


def _empty(output: str) -> str:
    document = {"apiVersion": VERSION, "kind": "AdapterList", "adapters": []}
    return json.dumps(document, indent=2) if output == "json" else f"{document}"


def _part(found: list[Any], output: str, *, first: bool) -> None:
    """Print some of the adapters of a list, the first ones with what stands before them."""
    if not found:
        return
    if output == "yaml":
        import yaml

        document = {"apiVersion": VERSION, "kind": "AdapterList", "adapters": found}
        dumped = yaml.safe_dump(document, sort_keys=False)
        print(dumped if first else dumped.partition("adapters:\n")[2], end="")
        return
    if first:
        print(f'{{\n  "apiVersion": "{VERSION}",\n  "kind": "AdapterList",\n  "adapters": [')
    text = _json(found, 2)[2:-2]
    indented = "\n".join(f"  {line}" for line in text.splitlines())
    print(("" if first else ",\n") + indented, end="")


def _top(options: argparse.Namespace) -> int:
    from lorafleet_operator.kubectl import top

    kubectl = _kubectl(options)
    namespace = _namespace(kubectl, options)
    screen = Screen.of(sys.stdout)

    def look() -> Any:
        return top.look(
            kubectl,
            namespace,
            busiest=options.adapters,
            port=options.metrics_port,
            live=not options.no_live,
        )

    if options.output in ("json", "yaml"):
        _tell(look(), options.output)
        return 0
    if options.once or not screen.live:
        _say(top.lines(look(), colour=screen.colour))
        return 0
    began = time.monotonic()
    first = look()  # what fails at once fails on the terminal as it was
    with screen.taken():
        while True:
            columns, height = screen.size()
            clock = time.strftime("%H:%M:%S  ")
            screen.draw(
                top.lines(first, clock=clock, columns=columns, height=height, colour=screen.colour)
            )
            # A hundred sidecars take seconds to be asked: half of the time nothing is.
            time.sleep(max(options.interval, time.monotonic() - began))
            began = time.monotonic()
            first = look()


def _why(options: argparse.Namespace) -> int:
    import asyncio

    from lorafleet_operator.cluster.requests import NoAnswer
    from lorafleet_operator.explain import InvalidManifest
    from lorafleet_operator.kubectl import why

    kubectl = _kubectl(options)
    try:
        found = asyncio.run(why.read(kubectl, _namespace(kubectl, options), options.name))
    except (NoAnswer, InvalidManifest) as error:
        return _complain(str(error))
    if options.output != "text":
        _tell(why.to_json(found), options.output)
    else:
        _say(why.to_text(found, colour=Screen.of(sys.stdout).colour))
    return 0


def _history(options: argparse.Namespace) -> int:
    from lorafleet_operator.kubectl import history, lookup

    kubectl = _kubectl(options)
    body = lookup.adapter(kubectl, _namespace(kubectl, options), options.name)
    found, wide = history.history(body), options.output == "wide"
    if options.output in ("json", "yaml"):
        _tell(found, options.output)
    elif options.output == "name":
        _say(printable(each["digest"]) for each in found["revisions"])
    else:
        _say(history.lines(found, colour=Screen.of(sys.stdout).colour, wide=wide))
    return 0


def _rollback(options: argparse.Namespace) -> int:
    from lorafleet_operator.kubectl import adapters, lookup, rollback

    kubectl, output = _kubectl(options), options.output
    namespace, name = _namespace(kubectl, options), options.name
    body = lookup.adapter(kubectl, namespace, name)
    digest, before = rollback.target(body, options.to), adapters.text(body, "status", "digest")
    written = rollback.write(kubectl, body, digest, dry_run=options.dry_run)
    what = f"revision {ls.short(digest)}" if digest else "what its source holds"
    trial = " (dry run)" if options.dry_run else ""
    ready, text = None, ""
    if output == "text":
        print(f"{namespace}/{name} is to serve {what}{trial}", flush=True)
    if not options.dry_run and not options.no_wait:
        screen = Screen.of(sys.stderr if output != "text" else sys.stdout)
        ready, text = rollback.wait(kubectl, written, Progress(screen), options.timeout)
    document = {
        "apiVersion": VERSION,
        "kind": "Rollback",
        "adapter": f"{namespace}/{name}",
        "before": before,
        "revision": digest,
        "dryRun": options.dry_run,
        "ready": ready,
        "message": text,
    }
    if output in ("json", "yaml"):
        _tell(document, output)
    elif output == "name":
        print(f"{_RESOURCE}/{name}")
    elif ready:
        print(printable(f"{namespace}/{name} serves {what}"))
    if ready is False:
        return _complain(f"{namespace}/{name} does not serve {what}: {text}")
    return 0


def _push(options: argparse.Namespace) -> int:
    from lorafleet.errors import LorafleetError

    from lorafleet_operator.kubectl import push

    kubectl, output = _kubectl(options), options.output
    progress = Progress(Screen.of(sys.stdout)) if output == "text" else None
    way = push.Way(
        options.service,
        options.address,
        options.ca_file,
        options.token_file,
        options.service_account,
        options.audience,
    )
    pool = options.pool.rpartition("/")
    named = {"name": options.name, "step": options.step, "base_model": options.base_model}
    try:
        folder = push.checked(options.folder, options.name)
        with push.Pusher(kubectl, _namespace(kubectl, options), way) as pusher:
            made = pusher.push(folder, progress, **named, pool=pool[2], pool_namespace=pool[0])
            sent = "unchanged" if made.unchanged else f"{size(made.sent_bytes)} sent"
            what = f"revision {ls.short(made.revision)}"
            if output == "text":
                print(f"{made.namespace}/{made.name} is to serve {what}, {sent}", flush=True)
            text = push.wait(made, options.timeout, progress) if options.wait else ""
    except LorafleetError as error:
        return _complain(str(error))
    ready = not text if options.wait else None
    if output in ("json", "yaml"):
        _tell({"apiVersion": VERSION, "kind": "Push", **push.document(made, ready, text)}, output)
    elif output == "name":
        print(f"{_RESOURCE}/{made.name}")
    elif ready:
        print(printable(f"{made.namespace}/{made.name} serves {what}"))
    if text:
        return _complain(f"{made.namespace}/{made.name} does not serve {what}: {text}")
    return 0


def _completion(options: argparse.Namespace) -> int:
    from lorafleet_operator.kubectl.complete import SCRIPTS

    print(SCRIPTS[options.shell], end="")
    return 0


_VERBS: Final[dict[str, Callable[[argparse.Namespace], int]]] = {
    "top": _top,
    "ls": _ls,
    "why": _why,
    "history": _history,
    "rollback": _rollback,
    "push": _push,
    "completion": _completion,
}
