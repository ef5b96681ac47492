"""Pushed revisions that a spec names by hand: one that is kept, one that is nowhere, somebody else's."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

from lorafleet.header import header_length, parse_header
from lorafleet_operator.push.incoming import Incoming
from lorafleet_operator.push.revision import described
from lorafleet_operator.push.spool import Spool
from lorafleet_operator.sources.bounds import SourceSettings
from operator_builders import adapter as built
from operator_rig import CASES, Operator, operator, ready
from sidecar_rig import Rig

if TYPE_CHECKING:
    from pathlib import Path

    from lorafleet_operator.api.v1alpha1 import LoRAAdapter


def push(root: Path, key: str, case: str) -> str:
    """Have what the folder of a case holds in the spool; return the revision."""
    config = (CASES / case / "adapter_config.json").read_bytes()
    whole = (CASES / case / "adapter_model.safetensors").read_bytes()
    end = 8 + header_length(whole[:8])
    settings, header = SourceSettings(), whole[8:end]
    tensors = [whole[end + t.begin : end + t.end] for t in parse_header(header).tensors]
    digests = [hashlib.sha256(each).digest() for each in tensors]
    revision = described(header, config, digests, adapter=key, settings=settings)
    spool = Spool(root, limit_bytes=1 << 40, namespace_bytes=1 << 40, revisions=3)
    spool.look()
    incoming = Incoming(spool, key, revision)
    incoming.open(set())
    for index in incoming.missing:
        incoming.write(index, 0, tensors[index])
    incoming.commit()
    incoming.close()
    spool.release(key)
    return revision.revision


def named(op: Operator, name: str, revision: str, generation: int = 1) -> LoRAAdapter:
    made = built(name, source={"push": {"revision": revision}})
    metadata = made.metadata.model_copy(update={"generation": generation})
    made = made.model_copy(update={"metadata": metadata})
    op.keep(made)
    return made


async def test_a_spec_may_name_what_is_kept_and_nothing_that_others_pushed(
    volume: Path, tmp_path: Path
) -> None:
    async with Rig(volume / "a", pod_uid="u0") as rig, operator(tmp_path, rig) as op:
        root = tmp_path / "pushed"
        first = push(root, "team-a/rl", "d01-plain-bf16")
        second = push(root, "team-a/rl", "d06-rank-and-alpha-pattern")
        served = await op.apply(named(op, "rl", first))
        assert ready(served)[:2] == ("True", "Ready")
        digest = served.status.digest

        def again(made: LoRAAdapter, revision: str) -> LoRAAdapter:
            changed = named(op, "rl", revision, made.metadata.generation + 1)
            return changed.model_copy(update={"status": made.status})

        newer = await op.apply(again(served, second))
        assert ready(newer)[0] == "True"
        back = await op.apply(again(newer, first))
        assert (ready(back)[0], back.status.digest) == ("True", digest), "nothing was pushed again"
        nowhere = await op.apply(again(back, f"sha256:{'7' * 64}"))
        assert ready(nowhere)[1] == "SourceNotFound"
        assert "push it again" in ready(nowhere)[2]
        assert await rig.answer("team-a/rl") == digest[7:19], "what was served is served"

        thief = await op.apply(named(op, "thief", first))
        assert ready(thief)[1] == "SourceNotFound"
        assert f"{first} of push://team-a/thief is not here any more" in ready(thief)[2]
        assert not any(adapter == "team-a/thief" for adapter, _ in rig.engine.loads)

        shutil.rmtree(root)
        op.forget_sources()
        kept = await op.apply(again(nowhere, first))
        assert ready(kept)[0] == "True", "of its own the engines serve what the operator has lost"
