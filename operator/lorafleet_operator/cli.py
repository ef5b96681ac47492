"""The command line: run, check, plan, crds."""

from __future__ import annotations

import gc
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet.arguments import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVED_SECONDS = 30.0
"""How long a start waits for the CustomResourceDefinitions, which a chart brings with it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name; return the exit status."""
    parser = Parser(prog="lorafleet-operator", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("run", help="run the operator (configured by LORAFLEET_* variables)")
    verbs.add_parser("check", help="look at what the operator needs, and whether one acts")
    plan = verbs.add_parser("plan", help="print where adapters would go and why; writes nothing")
    plan.add_argument(
        "-f", dest="files", type=Path, nargs="+", required=True, metavar="FILE",
        help="manifests of LoRAAdapters and EnginePools; pools are read from the cluster if absent",
    )  # fmt: skip
    plan.add_argument(
        "-o", dest="output", choices=("text", "json"), default="text",
        help="text: a line for each engine, for people; json: the same for programs",
    )  # fmt: skip
    crds = verbs.add_parser("crds", help="write the CustomResourceDefinitions")
    crds.add_argument("directory", type=Path, nargs="?", default=Path("crds"), metavar="DIR")
    crds.add_argument("--check", action="store_true", help="only compare; exit 1 on a difference")
    options = parser.parse_args(arguments)
    if options.verb == "run":
        return _run()
    if options.verb == "check":
        return _check()
    if options.verb == "plan":
        return _plan(options.files, options.output)
    return _crds(options.directory, check=options.check)


def _run() -> int:
    import asyncio

    import kopf
    from lorafleet.buffers import reuse_large_buffers
    from lorafleet.certificates import CertificateFiles, CertificatesUnusable

    from lorafleet_operator import (
        crashpoint,
        handlers,
        lasting_watches,
    )
    from lorafleet_operator.cluster import leases, reads, served
    from lorafleet_operator.settings import InvalidSetting, OperatorSettings

    try:
        settings = OperatorSettings.from_environ()
        if settings.shards > 1 and not (settings.lease_namespace or leases.own_namespace()):
            raise InvalidSetting(
                "LORAFLEET_SHARDS needs LORAFLEET_LEASE_NAMESPACE outside of a pod"
            )
        # The framework would try again for ever, a traceback each time.
        if settings.tls_dir:
            CertificateFiles(settings.tls_dir)
        asyncio.run(_cluster_is_there())
    except CertificatesUnusable as error:
        line = f"LORAFLEET_TLS_DIR={str(settings.tls_dir)!r}: {error}"
        print(f"lorafleet-operator: {line}", file=sys.stderr)
        return 2
    except (InvalidSetting, reads.NoCluster, served.NotServed) as error:
        print(f"lorafleet-operator: {error}", file=sys.stderr)
        return 2
    reuse_large_buffers()
    # What thousands of adapters leave in memory stays there: walking over it again and again to
    # find cycles took a tenth of the time after a start.
    gc.set_threshold(10_000, 10, 10)
    crashpoint.arm(settings.crash_at)
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if settings.log_level == "INFO":
        # The framework tells of each call of each handler; our passes say what came of it.
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    lasting_watches.install()
    if not settings.namespaces:
        handlers.watch_the_cluster()
    stopping = asyncio.Event()
    kopf.run(
        stop_flag=stopping,
        standalone=True,  # which operator acts for what, leases tell (tenure.py)
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        memo=handlers.Shared(settings=settings, stopping=stopping),
    )
    return 0


async def _cluster_is_there() -> None:
    from lorafleet_operator.cluster import reads, served

    api = await reads.connect()
    try:
        await served.wait_until_served(api, SERVED_SECONDS)
    finally:
        await api.close()


def _check() -> int:
    import asyncio

    from lorafleet_operator.checkup import CheckFailed, check
    from lorafleet_operator.cluster import reads, served
    from lorafleet_operator.cluster.requests import NoAnswer
    from lorafleet_operator.settings import InvalidSetting, OperatorSettings

    async def look() -> None:
        async for line in check(OperatorSettings.from_environ()):
            print(f"ok: {line}", flush=True)

    try:
        asyncio.run(look())
    except (
        InvalidSetting,
        CheckFailed,
        reads.NoCluster,
        NoAnswer,
        served.NotServed,
    ) as error:
        print(f"lorafleet-operator: {error}", file=sys.stderr)
        return 1
    return 0


def _plan(files: Sequence[Path], output: str) -> int:
    from lorafleet_operator.explain import InvalidManifest, explain

    try:
        pools = explain(files)
    except InvalidManifest as error:
        print(f"lorafleet-operator: {error}", file=sys.stderr)
        return 1
    if output == "json":
        print(json.dumps({"pools": [pool.to_json() for pool in pools]}, indent=2))
    else:
        print("\n\n".join(map(str, pools)))
    return 0


def _crds(directory: Path, *, check: bool) -> int:
    from lorafleet_operator.api.schema import check_crds, write_crds

    if not check:
        for path in write_crds(directory):
            print(path)
        return 0
    problems = check_crds(directory)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0
