"""Which images there are, and where."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent
IMAGES = REPOSITORY / ".cache" / "images"
"""Archives, lists of contents, and what they are built from."""
VERSION: str = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
BASE = "localhost/lorafleet-base:bookworm"
USER = 65532
"""The numeric user of the images; pods may choose another."""


@dataclass(frozen=True)
class Image:
    """One image of ours. `largest_mib` bounds what its files take unpacked, base included."""

    name: str
    containerfile: Path
    program: str
    largest_mib: int

    @property
    def reference(self) -> str:
        """As the chart names it, with `localhost` for a registry."""
        return f"localhost/lorafleet/{self.name}:{VERSION}"

    @property
    def lock(self) -> Path:
        """The versions of what is installed."""
        return REPOSITORY / "requirements" / f"{self.name}.txt"

    @property
    def archive(self) -> Path:
        """The built image, as containerd, podman and skopeo take it."""
        return IMAGES / f"{self.name}.tar"

    @property
    def sbom(self) -> Path:
        """What it holds, in CycloneDX's JSON."""
        return IMAGES / f"{self.name}.cdx.json"

    @property
    def context(self) -> Path:
        """What its Containerfile copies."""
        return IMAGES / "contexts" / self.name


OPERATOR = Image("operator", REPOSITORY / "operator" / "Containerfile", "lorafleet-operator", 320)
SIDECAR = Image(
    "sidecar", REPOSITORY / "engine_sidecar" / "Containerfile", "lorafleet-sidecar", 150
)
