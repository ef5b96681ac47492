"""A trainer in a process of its own that kills itself in the middle of its push."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from pushing import Content, Trainer


def main(address: str, token: str, namespace: str, moment: str, count: str) -> None:
    """Push what `Content.of(3, 4)` is, and die when `moment` was reached `count` times."""
    left = int(count)

    def reached(which: str) -> None:
        nonlocal left
        left -= which == moment
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = Trainer(address, token, namespace, reached=reached)
    asyncio.run(trainer.push(Content.of(3, 4), 2))


if __name__ == "__main__":
    main(*sys.argv[1:])
