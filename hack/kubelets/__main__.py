"""Run `up`, `load IMAGE...` or `down`."""

import argparse
import sys
from pathlib import Path

from processes import ProcessFailed

from kubelets import cluster
from kubelets.binaries import NodesFailed


def main() -> int:
    """Do it; what cannot be done is one line."""
    parser = argparse.ArgumentParser(prog="hack/nodes", description="two real nodes on one machine")
    parser.add_argument("verb", choices=["up", "load", "down", "can"])
    parser.add_argument("images", type=Path, nargs="*", help="OCI archives")
    parser.add_argument(
        "--share", metavar="NAME=FOLDER", action="append", default=[], help="seen as /srv/NAME"
    )
    arguments = parser.parse_args()
    try:
        if arguments.verb == "up":
            pairs = (pair.split("=", 1) for pair in arguments.share)
            cluster.up(arguments.images, {name: Path(folder) for name, folder in pairs})
            print(f"export KUBECONFIG={cluster.KUBECONFIG}")
        elif arguments.verb == "load":
            for archive in arguments.images:
                cluster.load(archive)
        elif arguments.verb == "down":
            cluster.down()
        elif reason := cluster.refusal():
            raise NodesFailed(reason)
    except (NodesFailed, ProcessFailed) as failure:
        print(f"nodes: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
