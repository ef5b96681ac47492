"""The containers of one pod as processes: what a kubelet makes of a spec, as far as a test needs it.

Each runs as the user and the groups that the pod gives it, with the environment of its spec and
nothing else. Mounts are paths in the arguments and variables, put in place of what the spec says.
The interpreter may lie where only root may go: the one capability left is to read anything, which
makes nobody's file writable and connects to no socket.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_READ_ONLY = ("--inh-caps", "--ambient-caps", "--bounding-set")


def as_user(
    command: Sequence[str | Path], user: int, group: int, groups: Sequence[int]
) -> list[str]:
    """Return the command as that user, who can read all and write only what is theirs."""
    words = [str(word) for word in command]
    if os.geteuid() != 0:
        return words  # nobody else can change users: then all are one
    left = [word for option in _READ_ONLY for word in (option, "-all,+dac_read_search")]
    who = ["--reuid", str(user), "--regid", str(group)]
    who += ["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]
    return ["setpriv", *who, *left, "--no-new-privs", *words]


class PodProcesses:
    """The processes of a pod as the API server has it, with its mounts at `paths`."""

    def __init__(self, pod: Mapping[str, Any], paths: Mapping[str, Path], logs: Path) -> None:
        self._metadata, self._spec = pod["metadata"], pod["spec"]
        self._paths = paths
        self._logs = logs

    def container(self, name: str) -> dict[str, Any]:
        """Return the spec of a container, init containers among them."""
        both = [*self._spec.get("initContainers", []), *self._spec["containers"]]
        [found] = [each for each in both if each["name"] == name]
        return dict(found)

    def environ(self, name: str) -> dict[str, str]:
        """Return the environment, with references to variables and fields followed."""
        found: dict[str, str] = {}
        for each in self.container(name).get("env", []):
            if "value" in each:
                text = re.sub(r"\$\((\w+)\)", lambda ref: found.get(ref[1], ref[0]), each["value"])
            else:
                field = each["valueFrom"]["fieldRef"]["fieldPath"].removeprefix("metadata.")
                text = self._metadata[field]
            found[each["name"]] = self._placed(text)
        return found

    def start(
        self, name: str, command: Sequence[str | Path], extra: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `command` in place of the container's image; `extra` is the image's environment."""
        pod, own = self._spec["securityContext"], self.container(name).get("securityContext", {})
        user = own.get("runAsUser", pod.get("runAsUser", 0))
        group = own.get("runAsGroup", pod.get("runAsGroup", user))
        groups = [
            *pod.get("supplementalGroups", []),
            *([pod["fsGroup"]] if "fsGroup" in pod else []),
        ]
        env = {"PATH": "/usr/bin:/bin", **(extra or {}), **self.environ(name)}
        with self.log(name).open("ab") as log:
            return subprocess.Popen(
                as_user([self._placed(str(word)) for word in command], user, group, groups),
                env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, cwd="/", umask=0o022,
            )  # fmt: skip

    def log(self, name: str) -> Path:
        """Return where a container's output goes."""
        return self._logs / f"{name}.log"

    def _placed(self, text: str) -> str:
        for mount, path in self._paths.items():
            here = rf"(?<![^:=]){re.escape(mount)}(?=[/:]|$)"  # not inside another path
            text = re.sub(here, str(path), text)
        return text


def memory_volume(path: Path, fs_group: int | None = None) -> None:
    """Give an empty directory the modes of an emptyDir: for everybody, and the pod's group if it has one."""
    if fs_group is not None and os.geteuid() == 0:
        os.chown(path, -1, fs_group)
        path.chmod(0o2777)
    else:
        path.chmod(0o777)
