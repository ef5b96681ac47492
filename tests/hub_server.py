"""A server that speaks as the Hugging Face hub does: commits, large files on a CDN, gated repositories."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from urllib.parse import unquote

from servers import LyingServer, Request

_LARGE_BYTES = 10_000


@dataclass
class HubServer(LyingServer):
    """One repository; a file above 10 kB lies at the CDN, `/cdn/<sha256>`, behind a redirect."""

    repo: str = "org/sql"
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Commit -> path -> content."""
    branches: dict[str, str] = field(default_factory=dict)
    """Branch or tag -> commit."""
    token: str = ""
    """What lets in; empty: everybody is."""
    gated: bool = False
    """Whether all may see that the repository is there, and its files only those with the token."""
    prefix: str = ""
    """Path below which a mirror has it all."""

    def _decide(self, request: Request) -> tuple[int, dict[str, str], bytes]:
        path = unquote(request.path.partition("?")[0]).removeprefix(self.prefix)
        if path.startswith("/cdn/"):
            sha256 = path.removeprefix("/cdn/")
            return self._ranged(request, self._large[sha256], sha256)
        files = path.startswith(f"/{self.repo}/resolve/")
        if not files and not path.startswith(f"/api/models/{self.repo}"):
            return _error(401, "RepoNotFound")
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            known = "authorization" in request.headers
            if not self.gated:
                return _error(401, "RepoNotFound")
            if files:
                return _error(403 if known else 401, "GatedRepo")
        if not files:
            return self._about(path.removeprefix(f"/api/models/{self.repo}"))
        revision, _, name = path.removeprefix(f"/{self.repo}/resolve/").partition("/")
        commit = self._commit(revision)
        if commit is None:
            return _error(404, "RevisionNotFound")
        content = self.commits[commit].get(name)
        if content is None:
            return _error(404, "EntryNotFound")
        sha256 = hashlib.sha256(content).hexdigest()
        told = {"X-Repo-Commit": commit, "ETag": f'"{sha256[:40]}"'}
        if len(content) <= _LARGE_BYTES:
            status, headers, body = self._ranged(request, content, sha256[:40])
            return status, {**headers, **told}, body
        told |= {"X-Linked-Etag": f'"{sha256}"', "X-Linked-Size": str(len(content))}
        cdn = f"http://localhost:{self.port}{self.prefix}/cdn"  # another origin
        return 302, {**told, "Location": f"{cdn}/{sha256}?X-Amz-Signature=abc"}, b""

    def _about(self, rest: str) -> tuple[int, dict[str, str], bytes]:
        if rest.startswith("/tree/"):
            return self._tree(rest.removeprefix("/tree/"))
        commit = self._commit(rest.removeprefix("/revision/") if rest else "main")
        if commit is None:
            return _error(404, "RevisionNotFound")
        siblings = [{"rfilename": name} for name in self.commits[commit]]
        about = {"id": self.repo, "modelId": self.repo, "sha": commit, "siblings": siblings}
        return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()

    def _tree(self, commit: str) -> tuple[int, dict[str, str], bytes]:
        entries = [
            {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
            for name, content in self.commits[commit].items()
        ]
        return 200, {"Content-Type": "application/json"}, json.dumps(entries).encode()

    def _commit(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)

    def _ranged(
        self, request: Request, content: bytes, etag: str
    ) -> tuple[int, dict[str, str], bytes]:
        self.files, self.etag = {request.path.partition("?")[0]: content}, f'"{etag}"'
        return super()._decide(request)

    @property
    def _large(self) -> dict[str, bytes]:
        contents = [content for files in self.commits.values() for content in files.values()]
        return {hashlib.sha256(content).hexdigest(): content for content in contents}


def _error(status: int, code: str) -> tuple[int, dict[str, str], bytes]:
    return status, {"X-Error-Code": code, "X-Error-Message": code}, b'{"error": "no"}'
