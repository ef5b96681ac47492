"""The small real engine of `fake_engine.py` as a process of its own.

`python fake_engine_process.py VOLUME PORT [options]` prints its port and serves until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

from fake_engine import Behaviour, FakeEngine


class ProcessEngine(FakeEngine):
    """A deadly load ends the process."""

    async def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("volume", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--deadly", action="append", default=[])
    parser.add_argument("--plain", action="store_true", help="without the plugin")
    parser.add_argument("--no-lora", action="store_true", help="without --enable-lora")
    parser.add_argument("--no-updates", action="store_true", help="no runtime LoRA updating")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--refuse", default="", help="text with which every load is refused")
    parser.add_argument("--profile", type=json.loads, default={}, help="JSON: fields to set in it")
    arguments = parser.parse_args()
    behaviour = Behaviour(
        plugin=not arguments.plain,
        deadly=set(arguments.deadly),
        lora_enabled=not arguments.no_lora,
        runtime_updates=not arguments.no_updates,
        api_key=arguments.api_key,
        refuse={"*": arguments.refuse} if arguments.refuse else {},
        profile=arguments.profile,
    )
    engine = ProcessEngine(arguments.volume, behaviour, arguments.port, arguments.host)
    await engine.start()
    print(engine.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
