"""Kubeconfigs that name no cluster that answers, or are none."""

from __future__ import annotations

import json

SILENT = {
    "kind": "Config",
    "current-context": "x",
    "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "x", "user": {}}],
}
UNREADABLE = {
    "not YAML": b"{ a: [",
    "not text": b"\xff\xfe\x00\x80",
    "a list": b"- 1",
    "a word": b"hello",
    "nothing in it": b"",
    "a broken cluster": b"kind: Config\ncurrent-context: x\ncontexts: 3\n",
    "a certificate that is none": json.dumps(
        {**SILENT, "clusters": [{"name": "x", "cluster": {
            "server": "https://127.0.0.1:1", "certificate-authority-data": "!!!",
        }}]}
    ).encode(),
}  # fmt: skip
