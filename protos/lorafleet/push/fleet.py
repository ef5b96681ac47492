"""What a trainer calls."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lorafleet.errors import InvalidAdapter, SourceNotFound
from lorafleet.push import content as contents
from lorafleet.push import peft_model
from lorafleet.push.background import Background
from lorafleet.push.connection import PROJECTED_TOKEN, Connection, Operator
from lorafleet.push.revision import Revision
from lorafleet.push.safe_point import Opening
from lorafleet.push.sending import Sending
from lorafleet.v1alpha1 import push_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from lorafleet.push.background import Pending
    from lorafleet.push.connection import Token
    from lorafleet.push.content import Content
    from lorafleet.push.safe_point import SafePoint

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Named:
    """What a push says beside its content.

    `name`: of the LoRAAdapter. `step`: the trainer's own count, told in status and metrics.
    `base_model`, `pool`: needed for the first push of an adapter that there is no manifest of; those
    and the others must be equal to the adapter's if it is there. `atomic`: all of its engines change
    to a revision or none (spec.rollout.atomic). `progress`: told (bytes sent, bytes to send) as they
    go.
    """

    name: str
    step: int = 0
    base_model: str = ""
    pool: str = ""
    pool_namespace: str = ""
    served_name: str = ""
    atomic: bool = False
    progress: Callable[[int, int], None] = lambda _sent, _of: None

    def manifest(self, namespace: str) -> pb.PushManifest:
        """Return the manifest, still without content. Raises InvalidAdapter."""
        try:
            found = pb.PushManifest(
                namespace=namespace,
                name=self.name,
                base_model=self.base_model,
                pool=self.pool,
                pool_namespace=self.pool_namespace,
                served_name=self.served_name,
                step=self.step,
                atomic=self.atomic,
            )
        except (TypeError, ValueError) as error:
            raise InvalidAdapter(f"what names the push cannot be sent: {error}") from None
        if found.step < 0:
            raise InvalidAdapter(f"step {found.step} is negative")
        return found


class Fleet:
    """A connection to the operator of a fleet, for one namespace.

    `address`: host:port of the operator's push service; a name that has several addresses is tried at
    each. `namespace`: by default the pod's own. `token`: a function, or the path of a projected
    token's file; read anew for each call. `ca`: a PEM file's path or bytes; None: the system's, and
    no TLS to a loopback address. `retry_seconds`: for how long a push is tried again when the operator
    is away or the stream breaks. `server_name`: what the certificate must name where it is not the
    address's host, as behind a port forward.
    """

    def __init__(
        self,
        address: str,
        namespace: str = "",
        *,
        token: Token = PROJECTED_TOKEN,
        ca: Path | str | bytes | None = None,
        retry_seconds: float = 60.0,
        server_name: str = "",
    ) -> None:
        self.namespace = namespace or _own_namespace()
        trusted = Path(ca) if isinstance(ca, str) else ca
        self._operator = Operator(address, token, trusted, retry_seconds, server_name)
        self._connection = Connection(self._operator)
        self._turn = threading.Lock()
        self._last = ""  # the adapter that was pushed last
        self._background = Background(self._send)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(drop=kind is not None)

    def close(self, *, drop: bool = False) -> None:
        """Let go of the connection, once what was pushed in the background is sent.

        `drop`: only what is being sent now; the rest is dropped.
        """
        self._background.close(drop=drop)
        self._connection.close()

    def push(
        self, what: Any, *, config: Any = None, adapter: str = "default", **named: Any
    ) -> Revision | None:
        """Push a revision of a LoRAAdapter, and return when the operator has it.

        `what`: a PEFT model in any wrapper, a state dict, the bytes of a safetensors file, or a
        folder. A state dict and bytes need `config`: PEFT's, a dict, or adapter_config.json's text.
        `adapter`: which of PEFT's adapters in the model. `named`: see Named.

        Returns None in processes of a distributed training other than the main one: they take part
        in gathering and send nothing. Raises errors of lorafleet.errors and of this package.
        """
        found = content_of(what, config, adapter)
        as_ = Named(**named)
        return (
            None if found is None else self._send(found, as_.manifest(self.namespace), as_.progress)
        )

    def push_later(
        self, what: Any, *, config: Any = None, adapter: str = "default", **named: Any
    ) -> Pending | None:
        """As `push`, but return once the tensors are copied; a thread sends them.

        Of each adapter one revision is sent and one waits. One that still waits when the next comes
        is dropped: its Pending raises Overtaken.
        """
        found = content_of(what, config, adapter)
        as_ = Named(**named)
        if found is None:
            return None
        return self._background.put(found, as_.manifest(self.namespace), as_.progress)

    def _send(
        self, content: Content, manifest: pb.PushManifest, progress: Callable[[int, int], None]
    ) -> Revision:
        """Push `content` as what `manifest` names; the rest of the manifest is filled in."""
        self._connection.check_process()
        manifest.adapter_config = content.config
        manifest.safetensors_header = content.header
        del manifest.tensor_digests[:]
        manifest.tensor_digests.extend(content.digests())
        with self._turn:
            committed = self._connection.call(Sending(manifest, content, progress))
            self._last = manifest.name
        return Revision(
            namespace=manifest.namespace,
            name=manifest.name,
            revision=committed.revision,
            step=manifest.step,
            generation=committed.generation,
            sent_bytes=committed.received_bytes,
            unchanged=committed.unchanged,
            served_name=manifest.served_name or f"{manifest.namespace}/{manifest.name}",
            _operator=self._operator,
        )

    def safe_point(self, name: str = "", timeout: float = 3600.0) -> SafePoint:
        """Let the adapter's pool recycle engines that grew; return what became of them.

        `name`: by default the adapter that was pushed last. Returns when no engine is due and every one
        that was recycled serves what it should, at once if none was due. Leaving it early, by an
        exception or with the process, lets no further engine be begun. Raises NotServed after
        `timeout` seconds (at most a day), AccessDenied, OperatorUnreachable.
        """
        return self.opening(name, timeout).wait()

    def opening(self, name: str, timeout: float) -> Opening:
        """Return the safe point, not open yet: for who waits for it in another thread."""
        name = name or self._last
        if not name:
            raise InvalidAdapter("nothing was pushed yet: name the adapter whose pool it is")
        return Opening(self._operator, self.namespace, name, timeout)


def content_of(what: Any, config: Any, adapter: str) -> Content | None:
    """Return what is to be pushed; None in a process that has nothing to send."""
    if isinstance(what, (str, Path)):
        if not Path(what).is_dir():
            raise SourceNotFound(f"{what} is no folder")
        return contents.from_folder(Path(what))
    if isinstance(what, (bytes, bytearray, memoryview)):
        return contents.from_bytes(what, config)
    if isinstance(what, dict):
        return contents.from_tensors(what, config, adapter=adapter)
    if peft_model.is_module(what):
        return peft_model.content_of(what, config, adapter)
    raise InvalidAdapter(
        f"a {type(what).__name__} cannot be pushed: give a PEFT model, a state dict, "
        "bytes of a safetensors file or a folder"
    )


def _own_namespace() -> str:
    try:
        return _NAMESPACE.read_text(encoding="utf-8").strip()
    except OSError:
        raise InvalidAdapter(f"no namespace given, and none in {_NAMESPACE}") from None
