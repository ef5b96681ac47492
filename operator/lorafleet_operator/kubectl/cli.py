"""Ask about LoRA adapters of a cluster; reads the API server only, and writes nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name; return the exit status."""
    parser = argparse.ArgumentParser(prog="kubectl lora", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    cluster = argparse.ArgumentParser(add_help=False)
    cluster.add_argument("-n", "--namespace", help="default: that of the context")
    cluster.add_argument("--context", help="context of the kubeconfig; default: the current one")
    cluster.add_argument("--kubeconfig", metavar="FILE", help="default: KUBECONFIG, ~/.kube/config")
    cluster.add_argument("-o", "--output", choices=("text", "json"), default="text")
    why = verbs.add_parser(
        "why", parents=[cluster], help="why an adapter is where it is, engine by engine"
    )
    why.add_argument("name", metavar="NAME", help="name of the LoRAAdapter")
    options = parser.parse_args(arguments)
    return _why(options)


def _why(options: argparse.Namespace) -> int:
    from lorafleet_operator.cluster.reads import NoAnswer, NoCluster
    from lorafleet_operator.explain import InvalidManifest
    from lorafleet_operator.kubectl.why import read, to_json, to_text

    try:
        found = asyncio.run(
            read(options.kubeconfig, options.context, options.namespace, options.name)
        )
    except (NoCluster, NoAnswer, InvalidManifest) as error:
        print(f"kubectl lora: {error}", file=sys.stderr)
        return 1
    print(json.dumps(to_json(found), indent=2) if options.output == "json" else to_text(found))
    return 0
