"""Every manifest that we hand out is one that the API server takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from resource_builders import API_VERSION, path

if TYPE_CHECKING:
    from kube_rest import KubeRest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((REPOSITORY / "charts" / "lorafleet" / "examples").glob("*.yaml"))
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


def ours(text: str) -> list[dict[str, Any]]:
    """The custom resources in a YAML text."""
    documents = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    return [each for each in documents if each.get("apiVersion") == API_VERSION]


def accept(kube: KubeRest, namespace: str, manifest: dict[str, Any]) -> None:
    metadata = {**manifest["metadata"], "namespace": namespace}
    stored = kube.create(path(manifest["kind"], namespace), {**manifest, "metadata": metadata})
    assert stored["metadata"]["name"] == manifest["metadata"]["name"]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.name))
def test_examples_are_accepted(kube: KubeRest, namespace: str, example: Path) -> None:
    for manifest in ours(example.read_text()):
        accept(kube, namespace, manifest)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.name))
def test_manifests_in_the_documents_are_accepted(
    kube: KubeRest, namespace: str, document: Path
) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", document.read_text(), flags=re.DOTALL):
        for manifest in ours(block):
            accept(kube, namespace, manifest)
