"""Compiled programs survive linking, saving and loading in another process."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.artifact import (
    LoadedArtifact,
    TargetRecord,
    export_library_bytes,
    read_artifact,
    write_artifact,
)
from tvm_ext.artifact.library import load_library
from tvm_ext.errors import ArtifactError
from tvm_ext.hardware.cpu.linker import find_compiler
from tvm_ext.tensor_spec import TensorSpec

# Runs in a fresh process: nothing of the compilation can help.
LOAD_AND_RUN = """
import sys, numpy as np, tvm
from tvm import relax
from tvm_ext.artifact import read_artifact
model, inputs, outputs = sys.argv[1:]
vm = relax.VirtualMachine(read_artifact(model).load_module(), tvm.cpu())
results = [vm["main"](tvm.runtime.tensor(x)).numpy() for x in np.load(inputs).values()]
np.savez(outputs, *results)
"""


def add_matmul_module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    rows = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", R.Tensor((rows, 4), "float32"))
    weight = relax.const(np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8))
    with builder.function("main", [x]):
        with builder.dataflow():
            summed = builder.emit(relax.op.add(x, x))
            result = builder.emit_output(relax.op.matmul(summed, weight))
        builder.emit_func_output(result)
    return builder.get()


@pytest.fixture(scope="module")
def program() -> relax.VMExecutable:
    return tvm.compile(add_matmul_module(), target="llvm")


@pytest.fixture(scope="module")
def library(program) -> bytes:
    return export_library_bytes(program)


def save(path: Path, library: bytes) -> None:
    write_artifact(
        path,
        library=library,
        report_json=json.dumps({"kernels": 2}),
        model_name="tiny",
        inputs=[TensorSpec("x", "float32", ("n", 4))],
        outputs=[TensorSpec("y", "float32", ("n", 8))],
        target=TargetRecord(name="cpu", kind="llvm"),
    )


# That of ``test_runtime.py`` without the compiler is in every run.
@pytest.mark.slow
def test_fresh_process_computes_the_same_numbers(tmp_path, program, library):
    model, inputs, outputs = (tmp_path / name for name in ("m.tvmx", "in.npz", "out.npz"))
    save(model, library)
    random = np.random.default_rng(1)
    arrays = [random.standard_normal((rows, 4), dtype="float32") for rows in (1, 5)]
    np.savez(inputs, *arrays)
    subprocess.run(
        [sys.executable, "-P", "-c", LOAD_AND_RUN, str(model), str(inputs), str(outputs)],
        check=True,
        cwd=tmp_path,
    )
    vm = relax.VirtualMachine(program, tvm.cpu())
    loaded = list(np.load(outputs).values())
    assert [result.shape for result in loaded] == [(1, 8), (5, 8)]
    for array, result in zip(arrays, loaded, strict=True):
        np.testing.assert_array_equal(result, vm["main"](tvm.runtime.tensor(array)).numpy())


@pytest.mark.extended
def test_two_models_live_in_one_process_and_leave_no_files(tmp_path, library, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    save(tmp_path / "m.tvmx", library)
    ones = tvm.runtime.tensor(np.ones((2, 4), "float32"))
    machines = [
        relax.VirtualMachine(read_artifact(tmp_path / "m.tvmx").load_module(), tvm.cpu())
        for _ in range(2)
    ]
    assert list((tmp_path / "temporary").iterdir()) == []
    results = [machine["main"](ones).numpy() for machine in machines]
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0]).max() > 0


@pytest.mark.extended
def test_linking_the_same_program_twice_gives_the_same_bytes():
    fresh = tvm.compile(add_matmul_module(), target="llvm")
    assert export_library_bytes(fresh) == export_library_bytes(fresh)


@pytest.mark.extended
def test_program_that_has_run_can_still_be_linked():
    program = tvm.compile(add_matmul_module(), target="llvm")
    ones = tvm.runtime.tensor(np.ones((2, 4), "float32"))
    before = relax.VirtualMachine(program, tvm.cpu())["main"](ones).numpy()
    module = load_library(export_library_bytes(program))
    after = relax.VirtualMachine(module, tvm.cpu())["main"](ones).numpy()
    np.testing.assert_array_equal(after, before)


def test_program_without_kernels_can_be_saved():
    @I.ir_module
    class Identity:
        @R.function
        def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            return x

    module = load_library(export_library_bytes(tvm.compile(Identity, target="llvm")))
    given = tvm.runtime.tensor(np.array([1, 2], "float32"))
    result = relax.VirtualMachine(module, tvm.cpu())["main"](given)
    np.testing.assert_array_equal(result.numpy(), [1, 2])


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF" + bytes(400)])
def test_library_that_the_system_refuses(content):
    with pytest.raises(ArtifactError, match="cannot load the model's code") as caught:
        load_library(content)
    assert "\n" not in str(caught.value)


def test_library_that_cannot_be_unpacked(tmp_path, monkeypatch, library):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(ArtifactError, match="set TMPDIR"):
        load_library(library)


def test_library_that_is_no_tvm_program(tmp_path):
    source = tmp_path / "empty.c"
    source.write_text("int tvmx_nothing;\n")
    plain = tmp_path / "plain.so"
    subprocess.run([*find_compiler(), "-shared", "-fPIC", "-o", plain, source], check=True)
    artifact_path = tmp_path / "m.tvmx"
    save(artifact_path, plain.read_bytes())
    loaded = read_artifact(artifact_path)
    assert isinstance(loaded, LoadedArtifact)
    with pytest.raises(ArtifactError, match="not a program of TVM's virtual machine"):
        loaded.load_module()


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)


@pytest.mark.usefixtures("no_compiler")
def test_missing_compiler_is_named(program):
    with pytest.raises(ArtifactError, match=r"no C or C\+\+ compiler found") as caught:
        export_library_bytes(program)
    assert "CXX" in str(caught.value)


@pytest.mark.parametrize("value", ["no-such-compiler", "'open quote"])
def test_variable_that_names_no_compiler_is_refused(monkeypatch, value):
    monkeypatch.setenv("CXX", value)
    with pytest.raises(ArtifactError, match=r"CXX=.* does not name a program"):
        find_compiler()


@pytest.mark.extended
def test_variable_may_hold_arguments(monkeypatch, program):
    plain = find_compiler()
    monkeypatch.setenv("CXX", f"env {plain[0]} -O1")
    assert find_compiler()[1:] == (plain[0], "-O1")
    assert load_library(export_library_bytes(program))


def test_failing_compiler_is_one_line(monkeypatch, tmp_path, program):
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'first line' >&2\necho 'ld: cannot find x' >&2\nexit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ArtifactError, match="ld: cannot find x") as caught:
        export_library_bytes(program)
    assert "\n" not in str(caught.value)


def test_a_folder_without_room_for_the_weights_is_refused_before_anything_is_written(program):
    with pytest.raises(ArtifactError, match=r"No space left on device; expected .*TMPDIR"):
        export_library_bytes(program, weights_bytes=1 << 60)
