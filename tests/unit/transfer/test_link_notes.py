"""What a link notes of commits, and for how long."""

from __future__ import annotations

from lorafleet.v1alpha1 import sidecar_pb2 as pb
from lorafleet_operator.transfer.links import Endpoint, EngineLink


async def test_notes_are_kept_of_what_is_staged_and_of_little_else() -> None:
    link = EngineLink(
        Endpoint("team-a/engine-0", "uid", "127.0.0.1", 1),
        heartbeat_seconds=10,
        on_change=lambda *_: None,
    )
    link.inventory = pb.Inventory()
    for number in range(5000):  # revision after revision; the engine has the last ten staged
        link.learn(f"fp-{number}", f"sha256:{number}")
        del link.inventory.staged[:]
        recent = range(max(0, number - 9), number + 1)
        link.inventory.staged.extend(pb.StagedRevision(digest=f"sha256:{n}") for n in recent)
    assert len(link.digests) <= 100
    assert [link.digests.get(f"fp-{n}") for n in range(4990, 5000)] == [
        f"sha256:{n}" for n in range(4990, 5000)
    ]
    for number in range(5000):  # one content, written again and again
        link.learn(f"again-{number}", "sha256:4999")
    assert len(link.digests) == 4096
    assert link.digests["again-4999"] == "sha256:4999"
    await link.close()
