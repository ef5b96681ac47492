"""Pushes into a folder on a disk of one mebibyte, which is full in the middle of a push."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
from lorafleet.errors import StagingFull
from lorafleet.push import Fleet
from push_door import door
from pushing import MODULE, Content


async def main(root: Path) -> None:
    async with door(root) as there:
        trainer = there.trainer()
        kept = await trainer.push(Content.of(1, 2), 1)
        large = {f"{MODULE}.lora_A.weight": np.arange(1 << 19, dtype=np.float32).reshape(2, -1)}
        with Fleet(trainer.address, "team-a", token=lambda: "good") as fleet:
            for _ in range(2):
                try:
                    config = Content.of(1, 2).config
                    await asyncio.to_thread(fleet.push, large, config=config, name="rl")
                except StagingFull as error:
                    print(error, len(there.files()))
        print(there.named() == kept.revision)
        small = await trainer.push(Content.of(3, 4), 3)
        print(there.named() == small.revision, len(there.files()))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
