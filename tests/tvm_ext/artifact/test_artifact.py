"""Saved models: what is written, what is refused, and that nothing is left behind."""

import errno
import os
import subprocess
import sys
import threading
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import pytest

import tvm_ext.configs.atomic_file as atomic_module
from tvm_ext.artifact import TargetRecord, read_artifact, write_artifact
from tvm_ext.artifact.manifest import Manifest, VersionsRecord
from tvm_ext.configs.atomic_file import check_writable
from tvm_ext.errors import ArtifactError, OutputPathError
from tvm_ext.tensor_spec import TensorSpec

INPUTS = (TensorSpec("x", "float32", (1, "N")), TensorSpec("mask", "bool", ()))
OUTPUTS = (TensorSpec("y", "float32", ("N", 8)),)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def save(path: Path, *, library: bytes = b"\x7fELF code", **changes) -> None:
    arguments = {
        "report_json": '{"kernels": []}',
        "model_name": "tiny",
        "inputs": INPUTS,
        "outputs": OUTPUTS,
        "target": TargetRecord(name="cpu", kind="llvm", mcpu="haswell"),
    }
    write_artifact(path, library=library, **{**arguments, **changes})


def test_describe_quotes_symbolic_dimensions():
    spec = TensorSpec("x", "float32", (1, 3, "N", 224))
    assert spec.describe() == "x: float32[1, 3, 'N', 224]"
    assert TensorSpec("s", "int64", ()).describe() == "s: int64[]"


def test_everything_saved_comes_back(tmp_path):
    path = tmp_path / "model.tvmx"
    save(path, library=b"\x00\xffcode", report_json='{"ü": 1}', created=MOMENT)
    loaded = read_artifact(path)
    assert loaded.library.read() == b"\x00\xffcode"
    assert loaded.report_json == '{"ü": 1}'
    assert loaded.path == path
    manifest = loaded.manifest
    assert (manifest.inputs, manifest.outputs) == (INPUTS, OUTPUTS)
    assert manifest.model_name == "tiny"
    assert manifest.created == MOMENT
    assert manifest.versions == VersionsRecord.installed()
    assert manifest.target.mcpu == "haswell"
    assert manifest.parts["model.so"].size == 6


def test_any_zip_program_can_read_it(tmp_path):
    path = tmp_path / "model.tvmx"
    save(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["manifest.json", "model.so", "report.json"]
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}


def test_same_content_makes_the_same_bytes(tmp_path):
    first, second, later = (tmp_path / name for name in ("a", "b", "c"))
    save(first, created=MOMENT)
    save(second, created=MOMENT)
    save(later, created=MOMENT.replace(year=2027))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != later.read_bytes()
    one, other = read_artifact(first), read_artifact(later)
    assert one.manifest.model_copy(update={"created": other.manifest.created}) == other.manifest
    assert (one.library.read(), one.report_json) == (other.library.read(), other.report_json)


def test_new_file_has_ordinary_permissions(tmp_path):
    save(tmp_path / "model.tvmx")
    (tmp_path / "plain").touch()
    assert (tmp_path / "model.tvmx").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_symbolic_link_stays_a_link(tmp_path):
    link = tmp_path / "link.tvmx"
    link.symlink_to(tmp_path / "real.tvmx")
    save(link)
    assert link.is_symlink()
    assert read_artifact(tmp_path / "real.tvmx").manifest.model_name == "tiny"


def test_name_that_is_not_unicode_does_not_stop_saving(tmp_path):
    save(tmp_path / "model.tvmx", model_name="caf\udce9")
    assert read_artifact(tmp_path / "model.tvmx").manifest.model_name == "caf?"


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("x\udce9", "float32", (1,)),
        TensorSpec("x", "float32", (np.int64(1),)),
        TensorSpec("x", "float32", (1.5,)),
    ],
)
def test_unfit_spec_is_refused_and_nothing_is_written(tmp_path, spec):
    with pytest.raises(ArtifactError, match="cannot save the model"):
        save(tmp_path / "model.tvmx", inputs=[spec])
    assert list(tmp_path.iterdir()) == []


def test_feature_names_have_no_sign():
    with pytest.raises(ValueError, match="required_features"):
        TargetRecord(name="cpu", kind="llvm", required_features=("+avx2",))


@pytest.mark.parametrize("attempt", [check_writable, save])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/model.tvmx", "does not exist; expected an existing folder: create it"),
        ("folder", "it is a folder; expected a file name"),
        ("file/model.tvmx", "cannot write"),
        ("pipe", "a device or a pipe"),
        ("loop", "cannot write"),
        ("nul\0byte", "cannot write"),
        ("n" * 300, "cannot write"),
    ],
)
def test_unwritable_path_is_refused(tmp_path, attempt, name, words):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutputPathError, match=words) as caught:
        attempt(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert repr(str(tmp_path / name)) in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_missing_permission_is_refused(tmp_path):
    (tmp_path / "protected.tvmx").touch(mode=0o444)
    with pytest.raises(OutputPathError, match="write-protected"):
        check_writable(tmp_path / "protected.tvmx")
    tmp_path.chmod(0o555)
    with pytest.raises(OutputPathError, match="Permission denied"):
        check_writable(tmp_path / "model.tvmx")


def test_check_writable_leaves_nothing_and_touches_nothing(tmp_path):
    check_writable(tmp_path / "new.tvmx")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old.tvmx").write_bytes(b"old")
    check_writable(str(tmp_path / "old.tvmx"))
    assert (tmp_path / "old.tvmx").read_bytes() == b"old"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failing_write_keeps_the_old_file(tmp_path, monkeypatch, step):
    path = tmp_path / "model.tvmx"
    save(path)
    before = path.read_bytes()

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_module.os, step, full)
    with pytest.raises(OutputPathError, match="No space left on device"):
        save(path, library=b"other")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.tvmx"
    save(path)

    def interrupt(_descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic_module.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(path, library=b"other")
    assert read_artifact(path).library.read() == b"\x7fELF code"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_leave_one_valid_file(tmp_path):
    path = tmp_path / "model.tvmx"
    libraries = [bytes([number]) * 200_000 for number in range(2)]

    def write_often(library: bytes) -> None:
        for _ in range(10):
            save(path, library=library)

    writers = [threading.Thread(target=write_often, args=(library,)) for library in libraries]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            assert read_artifact(path).library.read() in libraries
    for writer in writers:
        writer.join()
    assert read_artifact(path).library.read() in libraries
    assert list(tmp_path.iterdir()) == [path]


def test_manifest_schema_is_the_documented_one():
    assert set(Manifest.model_fields) == {
        "format", "format_version", "versions", "created", "model_name", "inputs", "outputs",
        "target", "parts", "specialized", "sharded",
    }  # fmt: skip


@pytest.mark.extended
def test_importing_starts_no_compiler(tmp_path):
    program = "import tvm_ext.artifact, sys; sys.exit(0)"
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("CXX", None)
    environment.pop("CC", None)
    assert subprocess.run([sys.executable, "-P", "-c", program], env=environment).returncode == 0
