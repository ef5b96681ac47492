"""The example of engine pods gives the sidecar settings with which it joins chains over TLS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from lorafleet_sidecar.settings import SidecarSettings

EXAMPLE = Path(__file__).parents[3] / "charts" / "lorafleet" / "examples" / "engines.yaml"


def environ(pod: dict[str, Any], fields: dict[str, str]) -> dict[str, str]:
    """Return what the kubelet makes of the sidecar's `env` in a pod with these `fields`."""
    [sidecar] = pod["initContainers"]
    found: dict[str, str] = {}
    for each in sidecar["env"]:
        if "value" in each:
            text = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], each["value"])
        else:
            text = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        found[each["name"]] = text
    return found


def test_the_example_sidecar_knows_its_pod_and_the_name_of_its_namespaces_certificates() -> None:
    template = yaml.safe_load(EXAMPLE.read_text())["spec"]["template"]
    labels = template["metadata"]["labels"]
    fields = {f"metadata.labels['{name}']": value for name, value in labels.items()}
    fields |= {"metadata.uid": "u-1", "metadata.namespace": "demo"}
    settings = SidecarSettings.from_environ(environ(template["spec"], fields))
    assert settings.pod_uid == "u-1"
    assert settings.peer_name == "demo.engines.lorafleet"
    assert settings.forwards
