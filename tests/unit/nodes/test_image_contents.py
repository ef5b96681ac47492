"""What hack/images refuses, on small trees."""

import io
import json
import tarfile
from pathlib import Path

import pytest
from imaging import archive, base, contents, sbom
from imaging.layout import OPERATOR, SIDECAR


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


KEY = "-----BEGIN PRIVATE KEY-----\n" + "A" * 64 + "\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("app/torch-2.13.dist-info/METADATA", "", "not for this image"),
        ("app/nvidia_cublas-12.dist-info/METADATA", "", "not for this image"),
        ("app/numpy/tests/test_a.py", "", "/app/numpy/tests are tests"),
        ("usr/bin/gcc", "", "no use for"),
        ("bin/sh", "", "no use for"),
        ("root/.netrc", "", "may hold a secret"),
        ("app/x.dist-info/direct_url.json", "{}", "may hold a secret"),
        ("etc/tls/key.pem", KEY, "holds a private key"),
        ("app/a.py", f'KEY = """{KEY}"""', "holds a private key"),
        ("etc/registries.conf", "https://bob:hunter2hunter2@registry.example/", "holds a password"),
    ],
)
def test_one_line_for_what_may_not_be_there(tmp_path, name, text, said):
    found = list(contents.violations(tree(tmp_path, {name: text}), 1))
    assert len(found) == 1
    assert said in found[0]


def test_harmless_files_are_let_in(tmp_path):
    files = {
        "app/grpc/doc.py": 'HEAD = "-----BEGIN PRIVATE KEY-----"',
        "app/lorafleet-0.1.0.dist-info/METADATA": "Name: lorafleet",
        "app/gcc/notes.txt": "https://user:short@host",
        "usr/lib/python3.11/test.py": "",
    }
    assert list(contents.violations(tree(tmp_path, files), 1)) == []


def test_modes_and_size_are_bounded(tmp_path):
    tree(tmp_path, {"usr/bin/mount": "x" * (2 << 20), "srv/open": ""})
    (tmp_path / "usr/bin/mount").chmod(0o4755)
    (tmp_path / "srv/open").chmod(0o666)
    found = "\n".join(contents.violations(tmp_path, 1))
    assert "/usr/bin/mount changes its user" in found
    assert "/srv/open can be written by everybody" in found
    assert "2 MiB of files, at most 1 MiB" in found


def test_configuration_names_a_user_by_number():
    good = {"User": "65532:65532", "Env": ["PATH=/bin"], "Entrypoint": ["x"]}
    assert list(contents.misconfigured(good)) == []
    for user in ("", "0", "root", "0:0"):
        assert "runAsNonRoot" in next(contents.misconfigured({**good, "User": user}))
    assert "TOKEN was not expected" in next(contents.misconfigured({**good, "Env": ["TOKEN=abc"]}))


def test_sbom_lists_what_lies_there(tmp_path):
    files = {
        "var/lib/dpkg/status.d/libc6": "Package: libc6\nVersion: 2.36-9\nArchitecture: amd64\n",
        "var/lib/dpkg/status": "Package: zlib1g\nVersion: 1:1.2\nArchitecture: amd64\n\nPackage: adduser\nVersion: 3\nArchitecture: all\n",
        "app/ml_dtypes-0.6.0.dist-info/METADATA": "Metadata-Version: 2.4\nName: ml_dtypes\nVersion: 0.6.0\nLicense-Expression: Apache-2.0\n",
    }
    wheels = {"ml_dtypes-0.6.0-cp311-cp311-manylinux_2_28_x86_64.whl": "ab" * 32}
    found = sbom.document(OPERATOR, tree(tmp_path, files), "sha256:" + "cd" * 32, wheels)
    listed = {part["purl"]: part for part in found["components"]}
    assert set(listed) == {
        "pkg:deb/debian/libc6@2.36-9?arch=amd64",
        "pkg:deb/debian/zlib1g@1%3A1.2?arch=amd64",
        "pkg:deb/debian/adduser@3?arch=all",
        "pkg:pypi/ml-dtypes@0.6.0",
    }
    python = listed["pkg:pypi/ml-dtypes@0.6.0"]
    assert python["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert python["licenses"] == [{"expression": "Apache-2.0"}]
    json.dumps(found)


@pytest.mark.parametrize(
    ("packaged", "placed"),
    [
        ("./lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6"),
        ("./lib64/ld-linux-x86-64.so.2", "usr/lib64/ld-linux-x86-64.so.2"),
        ("./usr/bin/python3.11", "usr/bin/python3.11"),
        ("./usr/share/doc/libc6/copyright", "usr/share/doc/libc6/copyright"),
        ("./usr/share/doc/libc6/changelog.gz", None),
        ("./usr/share/man/man1/python.1", None),
        ("./usr/sbin/update-ca-certificates", None),
        ("./lib", None),
        ("./", None),
    ],
)
def test_base_has_one_tree_without_what_only_people_read(packaged, placed):
    assert base.placed(packaged) == placed


def test_archives_are_read_layer_over_layer(tmp_path):
    image = tmp_path / "image.tar"
    write_archive(image, [{"etc/a": b"1", "etc/b": b"1"}, {"etc/b": b"2"}])
    root = tmp_path / "root"
    root.mkdir()
    archive.unpack(image, root)
    assert (root / "etc/a").read_bytes() == b"1"
    assert (root / "etc/b").read_bytes() == b"2"
    assert archive.configuration(image) == {"User": "65532"}
    write_archive(image, [{"etc/.wh.a": b""}])
    with pytest.raises(ValueError, match=r"removes etc/\.wh\.a"):
        archive.unpack(image, root)


def write_archive(path: Path, layers: list[dict[str, bytes]]) -> None:
    with tarfile.open(path, "w") as tar:
        described = []
        for number, files in enumerate(layers):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as layer:
                for name, content in files.items():
                    add(layer, name, content)
            add(tar, f"blobs/sha256/layer{number}", buffer.getvalue())
            described.append({"digest": f"sha256:layer{number}"})
        add(tar, "blobs/sha256/config", json.dumps({"config": {"User": "65532"}}).encode())
        manifest = {"config": {"digest": "sha256:config"}, "layers": described}
        add(tar, "blobs/sha256/manifest", json.dumps(manifest).encode())
        add(tar, "index.json", b'{"manifests": [{"digest": "sha256:manifest"}]}')


def add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("image", [OPERATOR, SIDECAR], ids=lambda image: image.name)
def test_containerfiles_take_their_base_and_run_as_the_number_that_is_checked(image):
    text = image.containerfile.read_text()
    assert "ARG BASE=" in text
    assert text.count("FROM ${BASE}") == 2
    assert "USER 65532:65532" in text
    assert f'ENTRYPOINT ["{image.program}"]' in text
