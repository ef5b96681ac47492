"""Everything that can be configured about a sidecar. The only reader of `os.environ`.

Each field is read from `LORAFLEET_<FIELD>` (upper case); an empty value counts as not given.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "LORAFLEET_"
_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}  # fmt: skip
_QUANTITY = re.compile(r"(\d+)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_LOOPBACK = ("127.", "[::1]", "localhost")


class InvalidSetting(ValueError):
    """Raised for a setting that is missing or malformed; the text names the variable."""


@dataclass(frozen=True, kw_only=True)
class SidecarSettings:
    """The settings of one sidecar, checked."""

    volume: Path
    """Directory of the memory-backed volume shared with vLLM. Required: nothing works without it."""

    arena_bytes: int
    """Bytes of the arena (accepts 512Mi, 2Gi), taken whole at start. Required: the host budget is
    the operator of the cluster's decision, and the container's memory limit follows from it."""

    pod_uid: str = ""
    """UID of this pod (downward API). Default empty; the operator refuses a sidecar whose UID is
    not that of the pod it dialled, so only local runs leave it out."""

    listen: str = "127.0.0.1:7070"
    """host:port of the gRPC service. Default loopback, because without TLS anyone who reaches the
    port can load adapters; with `tls_dir` set the default becomes 0.0.0.0:7070."""

    allow_insecure: bool = False
    """Listen beyond loopback without TLS. Default false: it has to be asked for by name."""

    tls_dir: Path | None = None
    """Directory with tls.crt, tls.key and ca.crt for mutual TLS. Default none: plaintext, loopback."""

    operator_name: str = "operator.lorafleet"
    """DNS name that the operator's certificate carries: with TLS nobody else may order anything,
    whatever authority signed. Default operator.lorafleet, as the chart issues it."""

    peer_name: str = ""
    """DNS name that the certificates of this pool's sidecars carry, and nobody else's (beside others,
    if need be). Default none: with TLS, transfers are then not passed on to other sidecars, since
    any holder of a certificate of the same authority could ask for that."""

    receivers: int = 0
    """Receiver processes for striped transfers. Default 0: chunks come on the one gRPC stream;
    each receiver costs a process of about 60 MiB and pays off only with cores to spare."""

    receiver_base_port: int = 0
    """First port of the receivers, one each. Default 0: the system chooses free ones, which only
    works where no firewall or NetworkPolicy names ports."""

    stall_seconds: float = 60.0
    """Seconds without a byte on any stream of a transfer after which it is ended. Default 60: a
    source that retries a range is silent for less."""

    resume_seconds: float = 900.0
    """Seconds that a broken transfer keeps its reservation in the arena. Default 15 minutes: an
    operator that restarts or backs off comes back well within that."""

    engine_url: str = "http://127.0.0.1:8000"
    """Base URL of vLLM's API server. Default vLLM's own; loopback, since both share the pod."""

    engine_api_key_file: Path | None = None
    """File with the engine's API key (--api-key); read at the first call and again when the engine
    answers 401, so that a rotated Secret works. Default none."""

    metrics_listen: str = "127.0.0.1:9464"
    """host:port of /metrics, /healthz and /readyz over plain HTTP. Default loopback; the chart
    sets 0.0.0.0:9464 so that Prometheus and the kubelet reach it. Empty: no metrics server."""

    refresh_seconds: float = 1.0
    """Seconds between two looks at the engine. Default 1: what a person or vLLM's LRU changes is
    known a second later; a look is one local request of well under a millisecond."""

    load_timeout_seconds: float = 300.0
    """Seconds for one load by the engine. Default 300: 6.3 GiB take 0.2 s by the direct loader and
    about 20 s by the stock one; a slow disk or a busy engine may need minutes, never more."""

    probe_timeout_seconds: float = 60.0
    """Seconds for the one-token probe after a name moved. Default 60: it queues behind the
    requests of the others."""

    drain_timeout_seconds: int = 60
    """Seconds to wait for running requests of a replaced or unloaded revision when the request
    names none. Default 60: longer than most generations."""

    @property
    def run_directory(self) -> Path:
        """What sidecar and vLLM both write to."""
        return self.volume / "run"

    @property
    def plugin_directory(self) -> Path:
        """The plugin's files, which vLLM's PYTHONPATH names."""
        return self.volume / "plugin"

    @property
    def forwards(self) -> bool:
        """Whether transfers are passed on: with TLS only to neighbours that can be told."""
        return self.tls_dir is None or bool(self.peer_name)

    @property
    def profile_path(self) -> Path:
        """Where the last known engine profile is kept for while vLLM restarts."""
        return self.run_directory / "profile.json"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> SidecarSettings:
        """Return the settings of the environment. Raises InvalidSetting naming the variable."""
        source = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for each in fields(cls):
            name = PREFIX + each.name.upper()
            text = source.get(name, "")
            if text:
                try:
                    values[each.name] = _PARSERS.get(each.name, str)(text)
                except ValueError as error:
                    raise InvalidSetting(f"{name}={text!r}: {error}") from None
            elif each.name == "metrics_listen" and name in source:
                values[each.name] = ""
        for required in ("volume", "arena_bytes"):
            if required not in values:
                raise InvalidSetting(f"{PREFIX}{required.upper()} is not set")
        if "listen" not in values and "tls_dir" in values:
            values["listen"] = "0.0.0.0:7070"  # mutual TLS guards it
        settings = cls(**values)  # type: ignore[arg-type]
        settings.check()
        return settings

    def check(self) -> None:
        """Raise InvalidSetting for settings that contradict each other."""
        loopback = self.listen.startswith(_LOOPBACK)
        if self.tls_dir is None and not loopback and not self.allow_insecure:
            raise InvalidSetting(
                f"{PREFIX}LISTEN={self.listen!r} is not loopback and {PREFIX}TLS_DIR is not set "
                f"(set {PREFIX}ALLOW_INSECURE=true to listen without TLS)"
            )


def parse_quantity(text: str) -> int:
    """Return the bytes that `text` (512Mi, 2Gi, 1048576) stands for. Raises ValueError."""
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        raise ValueError("expected bytes as a number with an optional unit such as Mi or Gi")
    return int(found[1]) * _UNITS[found[2] or ""]


def _parse_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false", "1", "0"):
        raise ValueError("expected true or false")
    return lowered in ("true", "1")


def _parse_address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("expected host:port")
    return text


def _parse_positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 86_400:
        raise ValueError("expected seconds above 0 and below a day")
    return value


def _parse_whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("expected a whole number")
    return int(text)


_PARSERS: dict[str, Callable[[str], object]] = {
    "volume": Path,
    "arena_bytes": parse_quantity,
    "listen": _parse_address,
    "metrics_listen": _parse_address,
    "allow_insecure": _parse_bool,
    "tls_dir": Path,
    "receivers": _parse_whole,
    "receiver_base_port": _parse_whole,
    "engine_api_key_file": Path,
    "stall_seconds": _parse_positive,
    "resume_seconds": _parse_positive,
    "refresh_seconds": _parse_positive,
    "load_timeout_seconds": _parse_positive,
    "probe_timeout_seconds": _parse_positive,
    "drain_timeout_seconds": _parse_whole,
}
