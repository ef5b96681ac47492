"""A repository of the Hugging Face hub, or of a mirror that speaks like it.

A branch or tag is resolved to its commit first; all files are then read from that commit, so one
resolve never mixes two versions, and the status names the commit.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from lorafleet.errors import (
    AccessDenied,
    PathNotAllowed,
    SourceError,
    SourceNotFound,
    SourceUnavailable,
)

from lorafleet_operator.sources import assemble, bounds
from lorafleet_operator.sources.bounds import one_line
from lorafleet_operator.sources.connection import Connection, Target
from lorafleet_operator.sources.endpoints import checked_endpoint
from lorafleet_operator.sources.remote_tree import RemoteTree
from lorafleet_operator.sources.stream import Reach
from lorafleet_operator.sources.weights import read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lorafleet_operator.sources.base import ResolvedAdapter
    from lorafleet_operator.sources.credentials import SecretData

HUB = "https://huggingface.co"
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_REVISION = re.compile(r"[A-Za-z0-9][\w./+-]{0,254}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_ANSWER_BYTES = 16 << 20


class HuggingFaceSource:
    """The adapter in `repo` at `revision`, maybe in its folder `path`."""

    kind = "huggingFace"

    def __init__(
        self,
        *,
        repo: str,
        revision: str,
        path: str,
        endpoint: str | None,
        secret: SecretData | None,
        settings: bounds.SourceSettings,
        allow_pickle: bool = False,
        on_read: Callable[[int], None],
    ) -> None:
        if not _REPO.fullmatch(repo) or ".." in repo:
            raise PathNotAllowed(f"source.huggingFace.repo {repo!r} is not a repository's name")
        if not _REVISION.fullmatch(revision) or ".." in revision:
            raise PathNotAllowed(f"source.huggingFace.revision {revision!r} is not a revision")
        path, self._weights = assemble.named_file(
            bounds.checked_relative_path(path, "source.huggingFace.path")
        )
        self._endpoint = checked_endpoint(endpoint or HUB, "source.huggingFace.endpoint")
        self._repo, self._revision, self._path = repo, revision, path
        self.uri = f"hf://{repo}@{revision}/{path}".rstrip("/")
        self._secret = secret
        authorization = secret.authorization() if secret else None
        self._headers = {"Authorization": authorization} if authorization else {}
        self._connection = Connection(
            self.uri,
            settings,
            ca_bundle=secret.ca_bundle() if secret else None,
            ca_label=secret.label if secret else "",
        )
        self._reach = Reach(self._connection, settings, self._explain, on_read)
        self._settings = settings
        self._allow_pickle = allow_pickle
        self._files: list[RemoteTree] = []
        self._answers = RemoteTree(self._reach, self.uri, self._locate_answer)

    async def resolve(self) -> ResolvedAdapter:
        """Resolve the revision to a commit, then header and config at that commit."""
        commit, paths = await self._current()
        # A tree for each commit: what was resolved before is still read from its own.
        files = RemoteTree(self._reach, self.uri, partial(self._locate_file, commit))
        self._files.append(files)
        try:
            found = await assemble.resolve(
                files,
                self._settings,
                allow_pickle=self._allow_pickle,
                weights_name=self._weights,
            )
        except SourceNotFound as error:
            raise SourceNotFound(f"{error}{_elsewhere(paths, self._path)}") from None
        return replace(found, revision=commit, checks=())  # a commit does not move

    async def aclose(self) -> None:
        """Close the connections."""
        await self._answers.aclose()
        for files in self._files:
            await files.aclose()

    async def _current(self) -> tuple[str, list[str]]:
        """Return the revision's commit and, as far as the hub says, the paths of its files."""
        if _COMMIT.fullmatch(self._revision):
            return self._revision, []
        blob = await self._answers.open("revision")
        if blob is None:
            raise SourceNotFound(f"{self._host()} has no {self._name()}")
        try:
            answer = json.loads(await read_whole(blob, _MAX_ANSWER_BYTES))
        except (ValueError, RecursionError):
            answer = None
        answer = answer if isinstance(answer, dict) else {}
        commit = answer.get("sha")
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise SourceUnavailable(f"{self.uri}: the hub does not name the revision's commit")
        listed = answer.get("siblings")
        entries = listed if isinstance(listed, list) else []
        paths = [entry.get("rfilename") for entry in entries if isinstance(entry, dict)]
        return commit, [path for path in paths if isinstance(path, str)]

    async def _locate_answer(self, name: str) -> Target:
        revision = quote(self._revision, safe="")
        return Target(f"{self._endpoint}/api/models/{self._repo}/{name}/{revision}", self._headers)

    async def _locate_file(self, commit: str, name: str) -> Target:
        path = quote(f"{self._path}/{name}".lstrip("/"))
        return Target(f"{self._endpoint}/{self._repo}/resolve/{commit}/{path}", self._headers)

    def _explain(self, status: int, body: bytes, headers: Mapping[str, str]) -> SourceError | None:
        del body
        code = headers.get("X-Error-Code")
        if code == "RevisionNotFound":
            return SourceNotFound(f"{self._host()} has no {self._name()}")
        # The hub says "not found" of a private repository to those who may not see it.
        if status not in (401, 403) and code != "RepoNotFound":
            return None
        hint = ""
        if code == "GatedRepo":
            page = f"{self._endpoint}/{self._repo}"
            hint = f"; the repository is gated: ask at {page} for access of the token's account"
        return AccessDenied(
            f"{status} from {self._host()} for {self._name()}: {self._sent()}{hint}"
        )

    def _sent(self) -> str:
        if self._headers and self._secret is not None:
            return f"{self._secret.label} key {self._secret.authorization_key()} was sent"
        return "no token configured"

    def _host(self) -> str:
        return urlsplit(self._endpoint).netloc

    def _name(self) -> str:
        return f"{self._repo} at {self._revision}"


def _elsewhere(paths: list[str], folder: str) -> str:
    """Return where else the repository has an adapter, for a message; "" if it is not known."""
    found = sorted(path.rpartition("/")[0] for path in paths if path.endswith(f"/{bounds.CONFIG}"))
    others = [one_line(path) for path in found if path != folder]
    if not others or f"{folder}/{bounds.CONFIG}".lstrip("/") in paths:
        return ""
    more = f" and {len(others) - 4} more" if len(others) > 4 else ""
    return f"; the repository has one in {', '.join(others[:4])}{more}"
