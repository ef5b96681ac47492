"""Command line: `lorafleet-sidecar serve | inspect PATH | profile | install-plugin DIR`."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet.arguments import Parser
from lorafleet.buffers import reuse_large_buffers
from lorafleet.certificates import CertificatesUnusable
from lorafleet.errors import EngineUnreachable, LorafleetError

from lorafleet_sidecar.engine import EngineClient
from lorafleet_sidecar.inspection import inspect_volume
from lorafleet_sidecar.plugin_files import install_plugin
from lorafleet_sidecar.profile_cache import ProfileCache
from lorafleet_sidecar.server import Sidecar
from lorafleet_sidecar.settings import InvalidSetting, SidecarSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from lorafleet.profile import EngineProfile


def main(argv: Sequence[str] | None = None) -> None:
    """Run one verb; exits 0, or 1 with one line on stderr, or 2 for wrong usage or settings."""
    arguments = _parser().parse_args(argv)
    reuse_large_buffers()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per look at the engine
    try:
        arguments.run(arguments)
    except InvalidSetting as error:
        _fail(str(error), 2)
    except (LorafleetError, OSError, ValueError) as error:
        _fail(str(error), 1)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lorafleet-sidecar", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    serve = verbs.add_parser("serve", help="run the sidecar; settings come from LORAFLEET_*")
    serve.set_defaults(run=lambda _: asyncio.run(_serve(SidecarSettings.from_environ())))
    inspect = verbs.add_parser("inspect", help="print what a volume holds; changes nothing")
    inspect.add_argument("path", type=Path, metavar="PATH")
    inspect.set_defaults(run=lambda a: print(inspect_volume(a.path), end=""))
    profile = verbs.add_parser("profile", help="print what the engine can take")
    profile.add_argument("-o", "--output", choices=("text", "json"), default="text")
    profile.set_defaults(run=lambda a: print(_profile(a.output)))
    install = verbs.add_parser(
        "install-plugin",
        help="write the plugin to a folder for vLLM's PYTHONPATH; serve does it too",
    )
    install.add_argument("directory", type=Path, metavar="DIR")
    install.set_defaults(run=lambda a: install_plugin(a.directory))
    return parser


async def _serve(settings: SidecarSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        sidecar = Sidecar(settings)
    except CertificatesUnusable as error:
        raise InvalidSetting(f"LORAFLEET_TLS_DIR={str(settings.tls_dir)!r}: {error}") from None
    try:
        await sidecar.start()
        await stop.wait()
    finally:
        await sidecar.stop()


def _profile(output: str) -> str:
    profile = asyncio.run(_read_profile(SidecarSettings.from_environ()))
    if output == "json":
        return profile.to_json()
    facts = json.loads(profile.to_json())
    modules = facts.pop("modules")
    lines = [f"{name:22} {value}" for name, value in facts.items()]
    lines += [
        f"  {m['name']} ({m['kind']}) {m['in_features']} -> {m['out_features']}" for m in modules
    ]
    return "\n".join(lines)


async def _read_profile(settings: SidecarSettings) -> EngineProfile:
    """Ask the engine; while it is down, take what it said last."""
    client = EngineClient(settings, stock_grace_seconds=0)
    try:
        observed = await client.observe()
    finally:
        await client.close()
    if observed.profile is not None:
        return observed.profile
    try:
        return ProfileCache(settings.profile_path).get()
    except EngineUnreachable:
        raise EngineUnreachable(observed.message) from None


def _fail(line: str, status: int) -> None:
    print(f"lorafleet-sidecar: {line}", file=sys.stderr)
    raise SystemExit(status)
