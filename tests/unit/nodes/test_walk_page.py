"""The page of the walk and the program that walks it say the same."""

import ast
import re

import pytest
import yaml
from kubelets.layout import MACHINE, NODES, REPOSITORY
from walking import machine
from walking.checks import Checks
from walking.page import PAGE, Step, steps
from walking.shell import Shell, StepFailed

FOLDER = REPOSITORY / "docs" / "walkthrough"


def test_steps_are_the_sh_blocks_of_a_section_in_order():
    text = """# Page
```sh
not a step
```
## First
words
```sh
a
b
```
```text
output
```
```sh
c
```
## No commands
words
## Last
```sh
d
```
"""
    assert steps(text) == [Step("First", "a\nb\n\nc\n"), Step("Last", "d\n")]


def test_every_step_has_its_check_and_every_check_its_step():
    assert [step.title for step in steps(PAGE.read_text())] == list(Checks().of)


def test_every_file_that_the_page_names_is_there_and_no_other():
    named = set(re.findall(r"docs/walkthrough/([\w.-]+)", PAGE.read_text()))
    assert named == {path.name for path in FOLDER.iterdir() if path.is_file()}


def test_the_bucket_is_the_one_that_the_adapter_names():
    secret, adapter = yaml.safe_load_all((FOLDER / "pirate.yaml").read_text())
    assert secret["stringData"] == {
        "accessKeyID": machine.ACCESS_KEY,
        "secretAccessKey": machine.SECRET_KEY,
    }
    bucket = adapter["spec"]["source"]["s3"]
    assert bucket["endpoint"] == f"http://{MACHINE}:{machine.S3_PORT}"
    assert (bucket["bucket"], bucket["prefix"]) == (machine.BUCKET, next(iter(machine.REVISIONS)))
    assert f'"prefix": "{list(machine.REVISIONS)[1]}"' in PAGE.read_text()


def test_drained_is_the_node_without_the_client():
    client = yaml.safe_load((FOLDER / "client.yaml").read_text())
    stays = client["spec"]["nodeSelector"]["kubernetes.io/hostname"]
    (drained,) = {node.name for node in NODES} - {stays}
    assert f"kubectl drain {drained} " in PAGE.read_text()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_programs_for_the_client_need_the_standard_library_alone(path):
    imported = {
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    known = {
        "collections",
        "json",
        "socket",
        "ssl",
        "sys",
        "time",
        "urllib.error",
        "urllib.request",
    }
    assert imported <= known


def test_a_shell_keeps_what_is_exported_and_tells_the_last_line_of_a_failure(tmp_path, capsys):
    shell = Shell(tmp_path)
    shell.run('export GREETING="good day"\nunset_later=1')
    assert shell.run('echo "$GREETING, ${unset_later:-nothing}"') == "good day, nothing\n"
    with pytest.raises(StepFailed, match=r"^no such thing$"):
        shell.run("echo first\nsh -c 'echo no such thing >&2; exit 3'\necho never")
    assert "    never" not in capsys.readouterr().out
    assert shell.run("echo $GREETING") == "good day\n"
