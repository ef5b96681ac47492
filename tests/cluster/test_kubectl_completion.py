"""Words are completed by kubectl's own protocol and by the script for bash, which a real bash runs."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from kubectl_lora import KubectlLora
from lorafleet_operator.kubectl.complete import SCRIPTS
from resource_builders import adapter, path, pool

if TYPE_CHECKING:
    from pathlib import Path

    from kube_rest import KubeRest
    from localcluster import LocalCluster

A, B = ("sha256:" + each * 32 for each in ("0a", "0b"))


@pytest.fixture
def lora(cluster: LocalCluster, tmp_path: Path, namespace: str, kube: KubeRest) -> KubectlLora:
    for name in ("sql", "sqlite", "chat"):
        kube.create(path("LoRAAdapter", namespace), adapter(name))
    status = {"digest": A, "history": [B]}
    kube.merge(path("LoRAAdapter", namespace, "sql", "status"), {"status": status})
    kube.create(path("EnginePool", namespace), pool())
    trainer = {"metadata": {"name": "trainer"}}
    kube.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", trainer)
    return KubectlLora(tmp_path, cluster.kubeconfig)


WORDS = {
    "": "completion history ls push rollback top why",
    "t": "top",
    "completion ": "bash fish zsh",
    "ls -o ": "json name text wide yaml",
    "top --on": "--once",
    "-n HERE why ": "chat sql sqlite",
    "why -n HERE s": "sql sqlite",
    "history --namespace=HERE c": "chat",
    "why -n HERE sql ": "",
    "rollback -n HERE sql --to ": "0a0a0a0a0a0a 0b0b0b0b0b0b source",
    "rollback --to ": "source",
    "ls -n HERE --pool ": "main",
    "ls --context ": "local",
    "ls --user ": "",
    "why -n nowhere ": "",
    "fly ": "completion history ls push rollback top why",
    "push -n HERE s": "sql sqlite",
    "push -n HERE sql dir --pool ": "main",
    "push -n HERE sql dir --service-account tr": "trainer",
    "push --wa": "--wait",
    "why --nonsense -n HERE sq": "sql sqlite",
}  # fmt: skip


@pytest.mark.parametrize("line", WORDS)
def test_kubectl_completes_words_of_the_plugin(
    line: str, lora: KubectlLora, namespace: str
) -> None:
    *before, word = line.replace("HERE", namespace).split(" ")
    ran = lora.run(*before, word, program="kubectl __complete lora")
    *found, directive = ran.out.split()
    assert (sorted(found), directive) == (sorted(WORDS[line].split()), ":4")


def test_namespaces_and_files_are_completed(lora: KubectlLora, namespace: str) -> None:
    ran = lora.run("ls", "-n", namespace[:7], program="kubectl __complete lora")
    assert namespace in ran.out.split()
    for words in (("ls", "--kubeconfig", ""), ("push", "sql", "./"), ("push", "--ca-file", "")):
        ran = lora.run(*words, program="kubectl __complete lora")
        assert ran.out == ":0\n"


def test_a_silent_cluster_completes_nothing_and_says_nothing(lora: KubectlLora) -> None:
    ran = lora.run("why", "-s", "http://127.0.0.1:1", "", program="kubectl_complete-lora")
    assert (ran.status, ran.out, ran.err) == (0, ":4\n", "")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["kubectl-lora", ""], "completion history ls push rollback top why"),
        (["kubectl-lora", "why", "-n", "HERE", "sq"], "sql sqlite"),
        (["kubectl-lora", "why", "-n", "HERE", "x"], ""),
    ],
)
def test_bash_runs_its_script(
    words: list[str], found: str, lora: KubectlLora, namespace: str
) -> None:
    given = " ".join(f"'{word}'" for word in words).replace("HERE", namespace)
    script = (
        "source <(kubectl-lora completion bash) && complete -p kubectl-lora >&2\n"
        f"COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}\n"
        '_kubectl_lora && echo "${COMPREPLY[*]}"'
    )
    run = subprocess.run(
        ["bash", "--norc", "-eu", "-c", script],
        env=lora.environment,
        capture_output=True,
        text=True,
    )
    assert run.stdout.split() == found.split()
    assert run.stderr == "complete -F _kubectl_lora kubectl-lora\n"


@pytest.mark.parametrize("shell", SCRIPTS)
def test_each_shell_has_a_script_that_it_can_read(shell: str, lora: KubectlLora) -> None:
    ran = lora.run("completion", shell)
    assert (ran.status, ran.out) == (0, SCRIPTS[shell])
    if shutil.which(shell):  # bash is everywhere; the others where somebody uses them
        checked = subprocess.run([shell, "-n"], input=ran.out, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")
