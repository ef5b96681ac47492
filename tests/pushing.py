"""A trainer as bare as can be: accounts that may push, and the protocol sent by hand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc.aio
from kube_rest import KubeRest
from lorafleet.grpc_streams import WrittenCall
from lorafleet.push import Fleet
from lorafleet.push.connection import ADAPTER_KEY
from lorafleet.v1alpha1 import push_pb2 as pb
from lorafleet.v1alpha1 import push_pb2_grpc as pb_grpc
from processes import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from operator_chain import Chain

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MODULE = "base_model.model.model.layers.0.self_attn.q_proj"
PUSH_RULES = [
    {"apiGroups": ["lorafleet.dev"], "resources": ["loraadapters/push"], "verbs": ["create"]},
    {"apiGroups": ["lorafleet.dev"], "resources": ["loraadapters"], "verbs": ["get", "create"]},
]

SAFE_POINT_RULE = {
    "apiGroups": ["lorafleet.dev"],
    "resources": ["enginepools/safepoint"],
    "resourceNames": ["pool"],
    "verbs": ["create"],
}


def account(kube: KubeRest, namespace: str, name: str, rules: list[dict[str, Any]]) -> None:
    """Make a service account with a role of these rules in its namespace."""
    kube.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    if not rules:
        return
    place = f"{RBAC}/namespaces/{namespace}"
    kube.create(f"{place}/roles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    body = {"metadata": {"name": name}, "subjects": [subject], "roleRef": reference}
    kube.create(f"{place}/rolebindings", body)


def token(
    kube: KubeRest, namespace: str, name: str, audience: str = "lorafleet", seconds: int = 600
) -> str:
    """Return a token of the account for that audience."""
    place = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    made = kube.create(place, {"spec": {"audiences": [audience], "expirationSeconds": seconds}})
    found: str = made["status"]["token"]
    return found


@contextmanager
def taking_pushes(chain: Chain, directory: Path, **settings: str) -> Iterator[Fleet]:
    """Start the chain's operator so that it takes pushes into `directory`; yield a trainer's Fleet."""
    address = f"127.0.0.1:{free_port()}"
    with KubeRest(chain.kubeconfig) as kube:
        who = f"trainer-{secrets.token_hex(3)}"
        account(kube, chain.namespace, who, [*PUSH_RULES, SAFE_POINT_RULE])
        text = token(kube, chain.namespace, who, seconds=7200)
    more = {"LORAFLEET_PUSH_LISTEN": address, "LORAFLEET_PUSH_DIR": str(directory)}
    operator = chain.start_operator(**more, **settings)
    try:
        with Fleet(address, chain.namespace, token=lambda: text) as fleet:
            yield fleet
    finally:
        operator.process.stop()


@dataclass
class Content:
    """One revision's files: two tensors of 64 bytes each, by default."""

    tensors: dict[str, bytes]
    base: str = "tiny/simulated"

    @classmethod
    def of(cls, a: int, b: int, **more: Any) -> Content:
        """Return an adapter whose A and B hold one byte each, over and over."""
        made = {f"{MODULE}.lora_A.weight": bytes([a]) * 64}
        made[f"{MODULE}.lora_B.weight"] = bytes([b]) * 64
        return cls(made, **more)

    @property
    def config(self) -> bytes:
        found = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.base,
        }
        more = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj"], "bias": "none"}
        return json.dumps({**found, **more}).encode()

    @property
    def header(self) -> bytes:
        entries, at = {}, 0
        for name, data in self.tensors.items():
            shape = [2, 16] if "lora_A" in name else [16, 2]
            end = at + len(data)
            entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
            at = end
        return json.dumps(entries).encode()

    @property
    def digests(self) -> list[bytes]:
        return [hashlib.sha256(data).digest() for data in self.tensors.values()]


def folder(path: Path, content: Content) -> Path:
    """Write what `save_pretrained` would."""
    path.mkdir()
    (path / "adapter_config.json").write_bytes(content.config)
    (path / "adapter_model.safetensors").write_bytes(safetensors(content))
    return path


def safetensors(content: Content) -> bytes:
    """Return adapter_model.safetensors."""
    header = content.header
    return len(header).to_bytes(8, "little") + header + b"".join(content.tensors.values())


@dataclass
class Trainer:
    """Pushes to one operator with one token."""

    address: str
    token: str
    namespace: str
    name: str = "rl"
    pool: str = "pool"
    authority: bytes = b""
    """The certificate to trust, as PEM. Empty: no TLS."""
    server_name: str = ""
    sent: list[int] = field(default_factory=list)
    """Tensors that the operator asked for, of all pushes."""
    reached: Callable[[str], None] = lambda moment: None
    """Told of "accepted", "piece" (each time) and "commit", when that is over."""
    piece_bytes: int = 40

    def manifest(self, content: Content, step: int, **more: Any) -> pb.PushManifest:
        return pb.PushManifest(
            **{
                "namespace": self.namespace,
                "name": self.name,
                "base_model": content.base,
                "pool": self.pool,
                "adapter_config": content.config,
                "safetensors_header": content.header,
                "tensor_digests": content.digests,
                "step": step,
                **more,
            }
        )

    async def push(
        self,
        content: Content,
        step: int = 0,
        *,
        stop_after: int = 99,
        arrived: Callable[[], bool] = lambda: True,
        seconds: float = 120,
        before: Callable[[int], Awaitable[None]] | None = None,
        **more: Any,
    ) -> pb.PushCommitted:
        """Push; with `stop_after` the stream is broken after so many tensors, when they `arrived`.

        before: awaited before each tensor, with how many went before it, and before the commit.
        """
        async with self.channel() as channel:
            stub = pb_grpc.PushServiceStub(channel)
            call = WrittenCall(
                stub.Push(metadata=self.metadata, wait_for_ready=True, timeout=seconds)
            )
            await call.write(pb.PushRequest(manifest=self.manifest(content, step, **more)))
            missing = list((await call.read()).accepted.missing)
            self.sent += missing
            self.reached("accepted")
            data = list(content.tensors.values())
            for count, index in enumerate(missing):
                if before is not None:
                    await before(count)
                if count == stop_after:
                    while not arrived():
                        await asyncio.sleep(0.01)
                    call.cancel()
                    raise BrokenOff
                for piece in pieces(index, data[index], self.piece_bytes):
                    await call.write(pb.PushRequest(bytes=piece))
                    self.reached("piece")
            if before is not None:
                await before(len(missing))
            await call.write(pb.PushRequest(commit=pb.CommitPush()))
            self.reached("commit")
            committed: pb.PushCommitted = (await call.read()).committed
            await call.finish()
            return committed

    def channel(self) -> grpc.aio.Channel:
        """Return a channel to the operator, not connected yet."""
        if not self.authority:
            return grpc.aio.insecure_channel(self.address)
        options = (("grpc.ssl_target_name_override", self.server_name),)
        return grpc.aio.secure_channel(
            self.address, grpc.ssl_channel_credentials(self.authority), options
        )

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        token = (("authorization", f"Bearer {self.token}"),) if self.token else ()
        return (*token, (ADAPTER_KEY, f"{self.namespace}/{self.name}"))


class BrokenOff(Exception):
    """Raised by a push that was told to break off."""


def pieces(index: int, data: bytes, size: int = 40) -> Iterator[pb.PushedBytes]:
    for at in range(0, len(data), size):
        yield pb.PushedBytes(tensor=index, offset=at, data=data[at : at + size])
