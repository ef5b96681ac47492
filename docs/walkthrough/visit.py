"""Knocks where a pod of somebody else has no business: `visit.py ENGINE`. Runs in the client's pod."""

import json
import socket
import ssl
import sys
import urllib.error
import urllib.request

# What a gRPC client sends first; a server that lets it in answers with its settings.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def answer_of_sidecar(engine: str, *, tls: bool) -> str:
    """What the sidecar's port says to somebody without a certificate."""
    try:
        connection = socket.create_connection((engine, 7070), timeout=5)
        if tls:
            anybody = ssl.create_default_context()
            anybody.check_hostname = False
            anybody.verify_mode = ssl.CERT_NONE
            anybody.set_alpn_protocols(["h2"])
            connection = anybody.wrap_socket(connection)
        connection.sendall(_HELLO)
        return "an answer" if connection.recv(100) else "refused"
    except OSError:
        return "refused"


def answer_of_engine(engine: str, path: str) -> str:
    """What vLLM says to somebody who would change its adapters."""
    body = json.dumps({"lora_name": "mine", "lora_path": "/tmp"}).encode()
    request = urllib.request.Request(
        f"http://{engine}:8000{path}", body, {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as refusal:
        return str(refusal.code)


if __name__ == "__main__":
    engine = sys.argv[1]
    print("sidecar, TLS without a certificate:", answer_of_sidecar(engine, tls=True))
    print("sidecar, no TLS:", answer_of_sidecar(engine, tls=False))
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        print(f"vLLM, {path}:", answer_of_engine(engine, path))
