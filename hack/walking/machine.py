"""What a user brings along: vLLM's image, a model, adapters, a bucket. All but the bucket is kept."""

from __future__ import annotations

import tempfile
from pathlib import Path

from demo import prepare
from imaging import for_nodes
from kubelets import cluster, record
from kubelets.binaries import find
from kubelets.layout import DIRECTORY, MACHINE
from localstack import LocalStack, S3Server
from processes import LocalProcess, listens

S3_PORT = 9000
BUCKET = "adapters"
ACCESS_KEY, SECRET_KEY = "walk-access", "walk-secret-key"
REVISIONS = {"pirate/v1": "pirate", "pirate/v2": "pirate-2"}
"""Prefix in the bucket and the style of the demo that lies there."""


def make_model() -> None:
    """Make the images that stand for others', the model and the adapters, as far as they lack."""
    for_nodes.make_pause()
    for_nodes.make_engine()
    with tempfile.TemporaryDirectory() as folder, LocalStack(Path(folder)) as stack:
        prepare.model(stack)
        prepare.finish_training(prepare.start_training(stack, list(REVISIONS.values())))
    for file in prepare.MODEL.iterdir():
        file.chmod(0o644)  # vLLM in its pod is nobody here


def start_bucket() -> None:
    """Start an S3 server beside the cluster, with the adapters in it; it ends with the cluster."""
    root = DIRECTORY / "s3"
    (root / "buckets" / BUCKET).mkdir(parents=True)
    (root / "metadata").mkdir()
    access_log = root / "access.log"
    process = LocalProcess.start(
        "s3",
        [
            *(find("versitygw"), "--port", f"{MACHINE}:{S3_PORT}", "--quiet"),
            *("--access", ACCESS_KEY, "--secret", SECRET_KEY, "--access-log", access_log),
            *("posix", "--sidecar", root / "metadata", root / "buckets"),
        ],
        DIRECTORY / "logs" / "s3.log",
    )
    cluster.adopt(record.Started.of("s3", process.pid))
    process.wait_until(lambda: listens(MACHINE, S3_PORT), 30)
    endpoint = f"http://{MACHINE}:{S3_PORT}"
    store = S3Server(process, endpoint, ACCESS_KEY, SECRET_KEY, BUCKET, access_log, root)
    for prefix, style in REVISIONS.items():
        store.upload(prepare.adapter(style), prefix)
    print(f"{endpoint}: bucket {BUCKET} with {', '.join(REVISIONS)}")
