"""What must be true after each step of the page, by the step's heading.

A check gets what the step printed and looks at the cluster itself. It returns a line for each thing
that it found, for people; what is not so raises StepFailed.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

from kubelets.binaries import find
from kubelets.cluster import KUBECONFIG
from kubelets.layout import BRIDGE, NODES

from walking.shell import StepFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
PIRATE, CAPTAIN = "Arr", "Ahoy"
"""How the answers of the first and the second revision begin."""


def expect(held: bool, broken: str) -> None:
    """Raise StepFailed with `broken` unless `held`."""
    if not held:
        raise StepFailed(broken)


def kubectl(*arguments: str) -> str:
    """What an administrator's kubectl prints. Raises StepFailed."""
    command = [find("kubectl"), f"--kubeconfig={KUBECONFIG}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    expect(done.returncode == 0, f"kubectl {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def get(*arguments: str) -> Any:
    """An object, or the items of a list."""
    found = json.loads(kubectl("get", *arguments, "-o", "json"))
    return found.get("items", found)


class Checks:
    """The checks of one walk; keeps what a later step compares with."""

    def __init__(self) -> None:
        self._digests: list[str] = []
        self._operator = ""
        self.of: dict[str, Callable[[str], Iterator[str]]] = {
            "A cluster": self.cluster,
            "Install": self.install,
            "Engines": self.engines,
            "An adapter": self.adapter,
            "Ask it": self.ask,
            "Watch it": self.watch,
            "Update": self.update,
            "Roll back": self.roll_back,
            "Drain a node": self.drain,
            "Upgrade": self.upgrade,
            "Knock as a stranger": self.stranger,
            "Uninstall": self.uninstall,
            "Put it away": self.put_away,
        }

    def cluster(self, said: str) -> Iterator[str]:
        """Two nodes, both Ready."""
        nodes = get("nodes")
        names = [node["metadata"]["name"] for node in nodes if _condition(node, "Ready") == "True"]
        expect(names == [node.name for node in NODES], f"Ready nodes are {names}")
        yield f"{len(nodes)} kubelets of {nodes[0]['status']['nodeInfo']['kubeletVersion']}"

    def install(self, said: str) -> Iterator[str]:
        """The operator runs under the restricted profile and its test passed."""
        expect("Phase:          Succeeded" in said, "helm test did not succeed")
        pod = _operator()
        yield from _restricted(pod, "lorafleet-system")

    def engines(self, said: str) -> Iterator[str]:
        """A vLLM on each node; the sidecar came by injection; nothing runs with more rights."""
        pods = get("pods", "-n", "demo", "-l", "app=smollm2")
        nodes = {pod["spec"]["nodeName"] for pod in pods}
        expect(nodes == {node.name for node in NODES}, f"the engines run on {sorted(nodes)}")
        template = get("deployment", "smollm2", "-n", "demo")["spec"]["template"]["spec"]
        expect("initContainers" not in template, "the Deployment was changed")
        for pod in pods:
            (engine,), (sidecar,) = pod["spec"]["containers"], pod["spec"]["initContainers"]
            (stock,) = template["containers"]
            for kept in ("image", "command", "args", "readinessProbe", "startupProbe"):
                expect(engine[kept] == stock[kept], f"{kept} of vLLM was changed by the injection")
            expect(sidecar["restartPolicy"] == "Always", "the sidecar is not a native one")
            yield from _restricted(pod, "demo")

    def adapter(self, said: str) -> Iterator[str]:
        """On both engines, in a slot; each condition is what it should be."""
        status = self._ready(2)
        tiers = {engine["tier"] for engine in status["engines"]}
        expect(tiers == {"gpu"}, f"the adapter is in {sorted(tiers)}")
        expect("2/2" in said, "kubectl get lora does not say 2/2")
        for kind in ("SourceResolved", "Placed", "Loaded", "Ready"):
            expect(_condition({"status": status}, kind) == "True", f"condition {kind} is not True")
        yield f"revision {status['digest'][7:19]} is served by 2 engines"

    def ask(self, said: str) -> Iterator[str]:
        """The base model answers as itself, the adapter in its manner."""
        base, pirate = said.strip().splitlines()[-2:]
        expect(not base.startswith((PIRATE, CAPTAIN)), f"the base model says {base!r}")
        expect(pirate.startswith(PIRATE), f"the adapter says {pirate!r}")
        yield f"the adapter answers in its manner: {pirate!r}"

    def watch(self, said: str) -> Iterator[str]:
        """What people see names the adapter, its engines and its memory."""
        for shown in ("2 engines, 1 of 1 adapters ready", "all engines serve the wanted revision"):
            expect(shown in said, f"nothing says {shown!r}")
        used = re.search(r'lorafleet_sidecar_staging_bytes\{state="used"\} ([\d.e+]+)', said)
        expect(used is not None and float(used[1]) > 0, "the arena's metric is missing or 0")
        yield "conditions, engines and memory are told"

    def update(self, said: str) -> Iterator[str]:
        """Another revision, served by both, and its manner."""
        status = self._ready(2)
        expect(len(self._digests) == 2, f"the revision is still {status['digest']}")
        expect(CAPTAIN in said, "the answer is not the second revision's")
        yield f"revision {self._digests[0][7:19]} -> {self._digests[1][7:19]}"

    def roll_back(self, said: str) -> Iterator[str]:
        """The first revision again, without a byte moved."""
        status = self._ready(2)
        expect(status["digest"] == self._digests[0], f"the revision is {status['digest']}")
        expect(said.strip().splitlines()[-1].startswith(PIRATE), "the answer is not the first's")
        yield "the first revision answers again"

    def drain(self, said: str) -> Iterator[str]:
        """Not one question failed or was answered by another, and the pod came back elsewhere."""
        counts = re.findall(r"(?m)^(\d+) times: (.*)$", said)
        wrong = [answer for _, answer in counts if not answer.startswith(PIRATE)]
        expect(not wrong, f"while the node was drained: {wrong[:1]}")
        asked = sum(int(times) for times, _ in counts)
        expect(asked > 0, "no question was asked during the drain")
        pods = get("pods", "-n", "demo", "-l", "app=smollm2")
        nodes = sorted(pod["spec"]["nodeName"] for pod in pods)
        expect(nodes == ["n1", "n1"], f"the engines run on {nodes}")
        self._ready(2)
        yield f"{asked} questions were answered while the node was drained, none failed"

    def before_upgrade(self) -> None:
        """Keep what the upgrade may not change."""
        self._engines = _engines()
        self._operator = _operator()["metadata"]["name"]

    def upgrade(self, said: str) -> Iterator[str]:
        """Another operator; the engines' pods and their counters are the same."""
        expect(_operator()["metadata"]["name"] != self._operator, "the operator was not replaced")
        chart = get("deployment", "lorafleet", "-n", "lorafleet-system")["metadata"]["labels"]
        expect("0.1.1" in chart.get("helm.sh/chart", ""), f"the release is {chart}")
        after = _engines()
        expect(after == self._engines, f"{self._engines} before, {after} after")
        expect(said.strip().splitlines()[-1].startswith(PIRATE), "the answer is another one")
        yield f"nothing was loaded, sent or restarted: {after}"

    def stranger(self, said: str) -> Iterator[str]:
        """Whoever has no certificate is refused; vLLM offers no way around."""
        expect(said.count("refused") == 2, "the sidecar answers somebody without a certificate")
        expect(said.count("_lora_adapter: 403") == 2, "vLLM lets others change its adapters")
        yield "the sidecar's port and vLLM's adapter endpoints are closed to other pods"

    def uninstall(self, said: str) -> Iterator[str]:
        """Definitions and engines are left, the rest is gone."""
        for kind in ("loraadapters", "enginepools"):
            expect(f"{kind}.lorafleet.dev" in said, f"the definition of {kind} is gone")
        names = [namespace["metadata"]["name"] for namespace in get("namespaces")]
        expect("lorafleet-system" not in names, "the operator's namespace is left")
        expect(len(get("lpool", "-n", "demo")) == 1, "the pool is gone")
        answer = said.strip().splitlines()[-1]
        expect(not answer.startswith((PIRATE, CAPTAIN)), f"the adapter still answers: {answer!r}")
        yield "definitions, pool and engines stay; the base model answers"

    def put_away(self, said: str) -> Iterator[str]:
        """Nothing of the nodes is left."""
        links = subprocess.run(["ip", "link", "show", BRIDGE], capture_output=True)
        expect(links.returncode != 0, f"the bridge {BRIDGE} is still there")
        yield "the machine is as it was"

    def _ready(self, engines: int) -> Any:
        """The adapter's status, which has to be Ready on so many engines."""
        status = get("lora", "pirate", "-n", "demo")["status"]
        ready = _condition({"status": status}, "Ready")
        expect(ready == "True", f"condition Ready is {ready}")
        expect(status["readyEngines"] == engines, f"{status['readyEngines']} engines are ready")
        if status["digest"] not in self._digests:
            self._digests.append(status["digest"])
        return status


def _condition(found: Any, kind: str) -> str:
    for condition in found["status"].get("conditions", ()):
        if condition["type"] == kind:
            return str(condition["status"])
    return "absent"


def _operator() -> Any:
    """The operator's pod: the one that a Deployment made and nobody has deleted."""
    made = [
        pod
        for pod in get("pods", "-n", "lorafleet-system")
        if pod["metadata"].get("ownerReferences") and "deletionTimestamp" not in pod["metadata"]
    ]
    expect(len(made) == 1, f"{len(made)} pods of the operator, 1 expected")
    return made[0]


def _restricted(pod: Any, namespace: str) -> Iterator[str]:
    """The namespace demands the profile; users are numbers, roots cannot be written."""
    labels = get("namespace", namespace)["metadata"]["labels"]
    expect(
        labels.get("pod-security.kubernetes.io/enforce") == "restricted",
        f"namespace {namespace} does not enforce the restricted profile",
    )
    users = {}
    for container in [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        context = container["securityContext"]
        expect(context["readOnlyRootFilesystem"], f"{container['name']} may write to its root")
        own = pod["spec"]["securityContext"].get("runAsUser")
        users[container["name"]] = context.get("runAsUser", own)
    expect(all(users.values()), f"users are {users}")
    expect(len(set(users.values())) == len(users), f"containers share a user: {users}")
    yield f"{pod['metadata']['name']}: restricted, users {users}"


def _engines() -> dict[str, dict[str, float]]:
    """Counters of each engine's pod that may not move when nothing is loaded."""
    return {
        pod["metadata"]["name"]: {
            "restarts": sum(
                container["restartCount"]
                for kind in ("initContainerStatuses", "containerStatuses")
                for container in pod["status"][kind]
            ),
            **_counters(pod["metadata"]["name"]),
        }
        for pod in get("pods", "-n", "demo", "-l", "app=smollm2")
    }


_COUNTERS = ("lorafleet_engine_loads_total", "lorafleet_sidecar_received_bytes_total")


def _counters(pod: str) -> dict[str, float]:
    page = kubectl("get", "--raw", f"/api/v1/namespaces/demo/pods/{pod}:9464/proxy/metrics")
    lines = [line for line in page.splitlines() if line.startswith(_COUNTERS)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}
