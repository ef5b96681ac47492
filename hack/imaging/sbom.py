"""What an image holds, in CycloneDX 1.5: Debian's packages of its base and Python's of /app.

Read from the image's own files, so that it lists what is there and not what was asked for.
"""

from __future__ import annotations

import re
from importlib.metadata import PathDistribution
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from imaging.layout import Image

APP = "app"


def document(image: Image, root: Path, digest: str, wheels: Mapping[str, str]) -> dict[str, Any]:
    """The SBOM of `image`, unpacked at `root`; `wheels` are SHA-256 by the wheels' file names."""
    components = [*debian_packages(root), *python_packages(root, wheels)]
    name, version = image.reference.rpartition(":")[::2]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": digest,
                "name": name,
                "version": version,
                "hashes": [_sha256(digest.removeprefix("sha256:"))],
            }
        },
        "components": sorted(components, key=lambda component: str(component["purl"])),
    }


def debian_packages(root: Path) -> Iterator[dict[str, Any]]:
    """The packages of the base, from either form of dpkg's list."""
    lists = sorted((root / "var/lib/dpkg/status.d").glob("*"))
    whole = root / "var/lib/dpkg/status"
    for file in [*lists, *([whole] if whole.exists() else [])]:
        for entry in file.read_text().split("\n\n"):
            fields = dict(re.findall(r"(?m)^(Package|Version|Architecture|Source): (.*)$", entry))
            if "Package" in fields:
                name, version = fields["Package"], fields["Version"]
                arch = f"?arch={fields['Architecture']}"
                yield {
                    "type": "library",
                    "bom-ref": f"deb/{name}",
                    "name": name,
                    "version": version,
                    "purl": f"pkg:deb/debian/{quote(name)}@{quote(version)}{arch}",
                }


def python_packages(root: Path, wheels: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The distributions installed in /app."""
    digests = {_canonical(name.split("-", 1)[0]): value for name, value in wheels.items()}
    for folder in sorted((root / APP).glob("*.dist-info")):
        metadata = PathDistribution(folder).metadata
        name = _canonical(metadata["Name"])
        component: dict[str, Any] = {
            "type": "library",
            "bom-ref": f"pypi/{name}",
            "name": name,
            "version": metadata["Version"],
            "purl": f"pkg:pypi/{name}@{quote(metadata['Version'])}",
        }
        if "License-Expression" in metadata:
            component["licenses"] = [{"expression": metadata["License-Expression"]}]
        if name in digests:
            component["hashes"] = [_sha256(digests[name])]
        yield component


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _sha256(value: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": value}
