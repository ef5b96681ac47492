"""One of two processes of Hugging Face's Trainer, which push: prints whether the model is in DDP, and
the step of the revision that the process has pushed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from lorafleet.push import Fleet
from lorafleet.push.callback import PushCallback
from peft_trainers import peft_model
from push_training import supervised
from torch.nn.parallel import DistributedDataParallel


def main(address: str, output: str) -> None:
    torch.set_num_threads(1)
    with Fleet(address, "team-a", token=lambda: "good") as fleet:
        place: dict[str, Any] = {"base_model": "tiny/dense", "pool": "pool"}
        callback = PushCallback(fleet, name="ddp", wait=False, **place)
        model = peft_model()
        trainer = supervised(model, Path(output) / "trained", callback, 3, ddp_backend="gloo")
        trainer.train()
        if trainer.is_world_process_zero():
            model.save_pretrained(Path(output) / "saved")
        wrapped = isinstance(trainer.model_wrapped, DistributedDataParallel)
        print(wrapped, callback.revision and callback.revision.step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
