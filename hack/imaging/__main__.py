"""Build both images, list what they hold, check them."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path

from kubelets.binaries import NodesFailed

from imaging import archive, contents, sbom, trial
from imaging.base import PackagesFailed, write_base
from imaging.buildah import BuildFailed, build, export
from imaging.layout import BASE, IMAGES, OPERATOR, SIDECAR, Image
from imaging.trial import TrialFailed
from imaging.wheels import WheelsFailed, digests, write_context

_FAILURES = (BuildFailed, NodesFailed, PackagesFailed, TrialFailed, WheelsFailed)


def make_base() -> None:
    """Build the base."""
    context = IMAGES / "contexts" / "base"
    context.mkdir(parents=True, exist_ok=True)
    write_base(context / "base.tar")
    shutil.copy(Path(__file__).parent / "Containerfile.base", context / "Containerfile")
    build(context / "Containerfile", context, BASE)


def make(image: Image) -> list[str]:
    """Build one image and its SBOM; what is wrong with it."""
    write_context(image)
    build(image.containerfile, image.context, image.reference)
    export(image.reference, image.archive)
    with tempfile.TemporaryDirectory(prefix="lorafleet-image-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        archive.unpack(image.archive, root)
        listed = sbom.document(image, root, archive.digest(image.archive), digests(image.context))
        image.sbom.write_text(json.dumps(listed, indent=1) + "\n")
        wrong = list(contents.violations(root, image.largest_mib))
        wrong += contents.misconfigured(archive.configuration(image.archive))
        modules = trial.run(image, root)
        unpacked = contents.size(root)
    print(
        f"{image.reference}: {unpacked >> 20} MiB unpacked, at most {image.largest_mib}; "
        f"{image.archive.stat().st_size >> 20} MiB as {image.archive.relative_to(Path.cwd())}; "
        f"{len(listed['components'])} packages in {image.sbom.name}; "
        f"{modules} modules run without root and with a root that cannot be written",
        flush=True,
    )
    return [f"{image.reference}: {line}" for line in wrong]


def main() -> int:
    """Do it; one line for each thing that is wrong."""
    parser = argparse.ArgumentParser(prog="hack/images", description="build and check the images")
    parser.add_argument("verb", nargs="?", choices=["all", "contexts"], default="all")
    verb = parser.parse_args().verb
    began = time.monotonic()
    try:
        if verb == "contexts":
            for image in (OPERATOR, SIDECAR):
                write_context(image)
                print(image.context)
            return 0
        make_base()
        wrong = [line for image in (OPERATOR, SIDECAR) for line in make(image)]
    except _FAILURES as failure:
        wrong = [str(failure)]
    for line in wrong:
        print(f"images: {line}", file=sys.stderr)
    print(f"[images] {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
