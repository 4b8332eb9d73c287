"""Reading a saved model: every reason to refuse one, in its order."""

import json
import os
import platform
import zipfile
from pathlib import Path

import pytest

from tvm_ext.artifact import TargetRecord, read_artifact, write_artifact
from tvm_ext.artifact import manifest as manifest_module
from tvm_ext.artifact.archive import write_seal
from tvm_ext.errors import ArtifactError
from tvm_ext.tensor_spec import TensorSpec


def save(path: Path, target: TargetRecord | None = None) -> None:
    write_artifact(
        path,
        library=b"code",
        report_json="{}",
        model_name="tiny",
        inputs=[TensorSpec("x", "float32", (1, "N"))],
        outputs=[],
        target=target or TargetRecord(name="cpu", kind="llvm"),
    )


def resave(path: Path, edit, seal_format: int = 1) -> None:
    """Write the archive again with its manifest changed, and a checksum that fits."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members["manifest.json"])
    edit(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    with path.open("w+b") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.comment = f"tvm-ext model format {seal_format} sha256 {'0' * 64}".encode()
            for name, content in members.items():
                archive.writestr(name, content)
        write_seal(file)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.tvmx", "there is no such file"),
        ("file/model.tvmx", "cannot load"),
        ("folder", "it is a folder"),
        ("pipe", "a device or a pipe"),
        ("file", "it is not a saved model"),
        ("other.zip", "it is not a saved model"),
        ("nul\0byte", "cannot load"),
    ],
)
def test_what_is_not_a_saved_model_is_refused(tmp_path, name, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(ArtifactError, match=words) as caught:
        read_artifact(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_newer_format_is_named_before_its_content_is_judged(tmp_path):
    path = tmp_path / "model.tvmx"
    save(path)
    resave(path, lambda manifest: manifest.update(format_version=4, parts="new"), seal_format=4)
    path.write_bytes(path.read_bytes().replace(b"code", b"CODE"))
    with pytest.raises(
        ArtifactError, match="written by format 4, this version reads 3: upgrade tvm-ext"
    ):
        read_artifact(path)


def _wrong_part(manifest: dict) -> None:
    manifest["parts"]["report.json"]["sha256"] = "0" * 64


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_wrong_part, "report.json does not have the checksum"),
        (lambda m: m["parts"]["model.so"].update(size=5), "model.so does not have the checksum"),
        (lambda m: m["parts"].pop("report.json"), "lists the parts model.so"),
        (lambda m: m.update(surprise=1), "surprise: Extra inputs"),
        (lambda m: m["inputs"][0].update(surprise=1), "inputs.0.surprise"),
        (lambda m: m.pop("target"), "target: Field required"),
        (lambda m: m.update(format="other"), "format: "),
        (lambda m: m["versions"].update(tvm="line\nend"), "apache-tvm line.end, but"),
        (lambda m: m["versions"].update(tvm="0.26.0"), r"apache-tvm 0\.26\.0, but 0\.27"),
        (lambda m: m["versions"].update(tvm_ffi="9.9"), r"apache-tvm-ffi 9\.9, but 0\.1"),
        (lambda m: m["target"].update(system="Plan9"), "compiled for Plan9 "),
        (lambda m: m["target"].update(machine="riscv128"), "compiled for .* riscv128, but this is"),
    ],
)
def test_manifest_that_does_not_fit_is_refused(tmp_path, edit, words):
    path = tmp_path / "model.tvmx"
    save(path)
    resave(path, lambda manifest: None)
    assert read_artifact(path).manifest.model_name == "tiny"
    resave(path, edit)
    with pytest.raises(ArtifactError, match=words) as caught:
        read_artifact(path)
    assert "\n" not in str(caught.value)


def test_the_library_is_compared_with_the_manifest_when_it_is_read(tmp_path):
    path = tmp_path / "model.tvmx"
    save(path)
    loaded = read_artifact(path)
    path.unlink()
    assert loaded.library.read() == b"code"
    save(path)
    resave(path, lambda m: m["parts"]["model.so"].update(sha256="0" * 64))
    with pytest.raises(ArtifactError, match=r"model\.so does not have the checksum"):
        read_artifact(path).library.read()


def test_refusals_come_in_order(tmp_path, monkeypatch):
    path = tmp_path / "model.tvmx"
    target = TargetRecord(name="cpu", kind="llvm", required_features=("nosuch",), machine="vax")
    save(path, target=target)
    monkeypatch.setattr(manifest_module.metadata, "version", lambda package: "9.0")
    with pytest.raises(ArtifactError, match="compiled with apache-tvm"):
        read_artifact(path)
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match=r"compiled for .* vax"):
        read_artifact(path)


def test_missing_cpu_features_are_named(tmp_path):
    path = tmp_path / "model.tvmx"
    features = ("avx2", "avx512f", "amx-bf16")
    save(path, target=TargetRecord(name="cpu", kind="llvm", mcpu="x", required_features=features))
    assert read_artifact(path, host_features=frozenset((*features, "fma"))).manifest
    with pytest.raises(ArtifactError, match="CPU features amx-bf16, avx512f, which this machine"):
        read_artifact(path, host_features=frozenset({"avx2"}))


def test_features_of_this_cpu_are_asked_for(tmp_path):
    path = tmp_path / "model.tvmx"
    save(path, target=TargetRecord(name="cpu", kind="llvm", required_features=("nosuch",)))
    with pytest.raises(ArtifactError, match="CPU features nosuch"):
        read_artifact(path)


@pytest.mark.parametrize(("name", "known"), [("arm64", "aarch64"), ("AMD64", "x86_64")])
def test_architecture_has_one_name_on_all_systems(tmp_path, monkeypatch, name, known):
    monkeypatch.setattr(platform, "machine", lambda: name)
    save(tmp_path / "model.tvmx")
    assert read_artifact(tmp_path / "model.tvmx").manifest.target.machine == known
