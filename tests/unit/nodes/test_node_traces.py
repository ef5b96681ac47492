"""What two nodes leave on a machine, and how they know what is theirs."""

import json
import subprocess
import sys

from kubelets import kernel, record, settings
from kubelets.layout import NODES


def test_kernel_settings_come_back_and_the_first_note_holds(tmp_path):
    root, note = tmp_path / "sys", tmp_path / "note.json"
    (root / "kernel").mkdir(parents=True)
    (root / "vm").mkdir()
    (root / "kernel/panic").write_text("1\n")
    (root / "vm/overcommit_memory").write_text("0\n")
    kernel.save_settings(note, root)
    (root / "kernel/panic").write_text("10\n")
    kernel.save_settings(note, root)  # a second start after one that was not taken down
    kernel.restore_settings(note, root)
    assert (root / "kernel/panic").read_text() == "1\n"
    assert (root / "vm/overcommit_memory").read_text() == "0\n"
    assert not note.exists()
    kernel.restore_settings(note, root)


def test_hierarchies_of_both_versions_of_control_groups(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    for name in ("cpu", "memory", "not-mounted"):
        (old / name).mkdir(parents=True)
    for name in ("cpu", "memory"):
        (old / name / "cgroup.procs").touch()
    (old / "cpuacct").symlink_to("cpu")
    new.mkdir()
    (new / "cgroup.controllers").touch()
    assert [path.name for path in kernel.hierarchies(old)] == ["cpu", "memory"]
    assert kernel.hierarchies(new) == [new]
    assert kernel.hierarchies(tmp_path / "absent") == []


def test_only_the_very_process_is_ended(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        ours = record.Started.of("sleep", process.pid)
        reused = record.Started("sleep", process.pid, ours.start - 1)
        reused.kill()
        assert process.poll() is None
        record.write(tmp_path / "note.json", [ours])
        (read,) = record.read(tmp_path / "note.json")
        assert read == ours
        assert read.alive
        read.kill()
        assert process.wait() == -9
        assert not read.alive
    finally:
        process.kill()
        process.wait()


def test_nodes_share_no_address_and_no_name():
    for attribute in ("name", "address", "pods", "cgroup", "link", "directory"):
        assert len({getattr(node, attribute) for node in NODES}) == len(NODES)
    assert all(len(node.link) <= 15 for node in NODES)  # the kernel's bound for interfaces


def test_settings_are_read_by_their_programs_formats():
    for node in NODES:
        assert json.loads(settings.kubelet(node))["cgroupRoot"] == f"/{node.cgroup}"
        assert json.loads(settings.kube_proxy(node))["hostnameOverride"] == node.name
        network = json.loads(settings.pod_network(node))["plugins"][0]
        assert network["ipam"]["ranges"] == [[{"subnet": node.pods}]]
