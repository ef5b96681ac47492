"""The API server, as kubectl reaches it: each request is a `kubectl get --raw` or `replace --raw`.

So every way to log in, every flag and every proxy that kubectl knows works here, and a request
costs some 40 ms of processor time where a client library takes half a second to be imported.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from lorafleet_operator.api import names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PAGE: Final = 250
"""Objects of one answer: what is in memory at a time of a list, however long it is."""
MOST_BYTES: Final = 256 << 20
"""Longest answer that is read."""
_PAUSE_SECONDS: Final = 1.0
"""Between the end of a watch, which the server ends every hour or so, and the next one."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SERVER: Final = re.compile(r"Error from server \((?P<reason>\w+)\): (?P<text>.*)", re.DOTALL)
_SILENT: Final = ("Unable to connect", "deadline exceeded", "Client.Timeout", "i/o timeout")
_NOWHERE: Final = ("localhost:8080", "no configuration has been provided")
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Failed(RuntimeError):
    """Raised for what cannot be had; one line for people.

    `reason`: the API server's (Forbidden, NotFound, Conflict, ...), NoCrds, Silent, or "" for others.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(" ".join(text.split())[:1000])
        self.reason = reason


def path(plural: str, namespace: str = "", name: str = "") -> str:
    """Return where objects of one of our kinds are: all of them, a namespace's, or one.

    Raises Failed for what is no name.
    """
    inside = ["namespaces", named(namespace)] if namespace else []
    own = [named(name)] if name else []
    return "/".join([f"/apis/{names.API_VERSION}", *inside, plural, *own])


def named(text: str) -> str:
    """Return a name as it was given. Raises Failed for what is none.

    Quoting is not enough: kubectl resolves `..%2F` in a raw path, which would lead anywhere.
    """
    if len(text) > 253 or _NAME.fullmatch(text) is None:
        raise Failed(f"{text!r} is no name of an object")
    return text


class Kubectl:
    """Requests with the flags that choose a cluster and a user.

    flags: as kubectl has them, for example ["--context", "prod"].
    seconds: how long one answer may take; a watch may take for ever.
    """

    def __init__(self, flags: Sequence[str] = (), seconds: str = "10s") -> None:
        self._flags = list(flags)
        self._seconds = seconds

    def namespace(self) -> str:
        """Return the namespace of the chosen context. Raises Failed."""
        try:
            view = self._run(["config", "view", "--minify", "-o", "json"])
        except Failed as error:
            if "minify" not in str(error):
                raise
            # No context at all: in a pod, or nowhere, as the first request will tell.
            return _ACCOUNT.read_text().strip() if _ACCOUNT.exists() else "default"
        contexts = json.loads(view).get("contexts") or [{}]
        return str((contexts[0].get("context") or {}).get("namespace") or "default")

    def contexts(self) -> list[str]:
        """Return the names of the kubeconfig's contexts. Raises Failed."""
        return self._run(["config", "get-contexts", "-o", "name"]).split()

    def get(self, place: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return one object or list. Raises Failed."""
        return _object(self.text(place, query))

    def text(
        self, place: str, query: Mapping[str, str] | None = None, most_bytes: int = MOST_BYTES
    ) -> str:
        """Return an answer as it comes. Raises Failed, also if it is longer than `most_bytes`."""
        command = ["get", "--raw", _url(place, query), "--request-timeout", self._seconds]
        return self._run(command, most_bytes=most_bytes)

    def pages(self, place: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield a list page by page, of which one is in memory at a time. Raises Failed."""
        more = ""
        while True:
            next_ = {"continue": more} if more else {}
            page = self.get(place, {"limit": str(PAGE), **(query or {}), **next_})
            yield page
            more = (page.get("metadata") or {}).get("continue") or ""
            if not more:
                return

    def items(self, place: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list. Raises Failed."""
        for page in self.pages(place, query):
            yield from page.get("items") or ()

    def names(self, place: str, seconds: float = 3.0) -> list[str]:
        """Return the names of a list's objects, as many as come while a person waits. Raises Failed."""
        found: list[str] = []
        deadline = time.monotonic() + seconds
        for page in self.pages(place):
            found += [str((each.get("metadata") or {}).get("name")) for each in page["items"]]
            if time.monotonic() > deadline:
                break
        return found

    def watch(
        self, place: str, version: str, query: Mapping[str, str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield changes, `{"type", "object"}`, from a list's resourceVersion on, for ever.

        Raises Failed, with the reason Expired when the version is too old by now.
        """
        while True:
            given = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
            heard = False
            child = self.started(["get", "--raw", _url(place, {**(query or {}), **given})])
            try:
                for line in child.lines():
                    heard = True
                    change = _object(line)
                    body = change.get("object") or {}
                    if change.get("type") == "ERROR":
                        heard = False
                        raise Failed(str(body.get("message")), str(body.get("reason")))
                    version = str((body.get("metadata") or {}).get("resourceVersion") or version)
                    if change.get("type") != "BOOKMARK":
                        yield change
                child.check()
            except Failed:
                if not heard:
                    raise  # what breaks at once breaks again
            finally:
                child.end()
            time.sleep(_PAUSE_SECONDS)

    def put(
        self, place: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Write an object as it was read; one that has changed meanwhile is a Conflict. Raises Failed."""
        command = ["replace", "--raw", _url(place, query), "-f", "-"]
        command += ["--request-timeout", self._seconds]
        return _object(self._run(command, json.dumps(body)))

    def post(self, place: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object, or ask for what is made of one. Raises Failed."""
        command = ["create", "--raw", place, "-f", "-", "--request-timeout", self._seconds]
        return _object(self._run(command, json.dumps(body)))

    def _command(self, arguments: Sequence[str]) -> list[str]:
        kubectl = shutil.which("kubectl")
        if kubectl is None:
            raise Failed("kubectl is not on the PATH")
        return [kubectl, *arguments, *self._flags]

    def _run(self, arguments: Sequence[str], given: str = "", most_bytes: int = MOST_BYTES) -> str:
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as stdin:
            stdin.write(given.encode())
            stdin.seek(0)
            with subprocess.Popen(  # noqa: S603 # no shell; the flags are the user's own
                self._command(arguments), stdin=stdin, stdout=subprocess.PIPE, stderr=said
            ) as process:
                assert process.stdout is not None
                found = process.stdout.read(most_bytes + 1)
                if len(found) > most_bytes:
                    process.kill()
                    raise Failed(f"an answer is longer than {most_bytes} bytes")
            if process.returncode:
                said.seek(0)
                raise _failed(said.read(1 << 16).decode(errors="replace"))
        return found.decode(errors="replace")

    def started(self, arguments: Sequence[str]) -> Child:
        """Start a command that goes on until it is ended. Raises Failed."""
        return Child(self._command(arguments))


class Child:
    """A kubectl that goes on until it is ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 # closed by `end`
        self._process = subprocess.Popen(  # noqa: S603 # as above
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._said
        )

    def lines(self) -> Iterator[str]:
        """Yield what it prints, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.decode(errors="replace")

    def check(self) -> None:
        """Wait until it ends by itself. Raises Failed unless all was well."""
        if self._process.wait():
            raise self.failed()

    def failed(self) -> Failed:
        """Return what it complained of, once it has ended by itself."""
        self._process.wait()
        self._said.seek(0)
        return _failed(self._said.read(1 << 16).decode(errors="replace"))

    def kill(self) -> None:
        """Make it end, from another thread than the one that reads."""
        self._process.kill()

    def end(self) -> None:
        """End it, if it has not ended, and let go of it."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()


def _url(place: str, query: Mapping[str, str] | None) -> str:
    return f"{place}?{urlencode(query)}" if query else place


def _object(text: str) -> dict[str, Any]:
    """Return an answer's JSON; what stands between may answer anything."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failed(f"the API server's answer is no object: {text[:100]!r}")
    return found


def _failed(said: str) -> Failed:
    """Return what kubectl's complaint means."""
    said = said.strip()
    if found := _SERVER.search(said):
        reason, text = found["reason"], found["text"]
        if reason == "NotFound" and "could not find the requested resource" in text:
            text = f"the cluster has no {names.GROUP} resources: install the CRDs (kubectl apply -f crds/)"
            return Failed(text, "NoCrds")
        return Failed(f"forbidden: {text}" if reason == "Forbidden" else text, reason)
    if any(each in said for each in _NOWHERE):
        return Failed("no kubeconfig names a cluster: give --kubeconfig or set KUBECONFIG")
    if said.endswith("EOF") and ("Username" in said or said == "error: EOF"):
        return Failed("the kubeconfig's user has no credentials, and the API server asks for some")
    if any(each in said for each in _SILENT) or "was refused" in said:
        return Failed(f"the API server does not answer: {said.removeprefix('error: ')}", "Silent")
    lines = [line for line in said.splitlines() if line.strip()]
    return Failed(" ".join(lines[-3:]).removeprefix("error: ") or "kubectl failed")
