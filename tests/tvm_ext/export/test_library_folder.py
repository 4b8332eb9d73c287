"""Exported models run in C and C++ programs on TVM's runtime, with the numbers of Python."""

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import as_json, refused
from host_models import classifier
from small_models import V, W, model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.configs.errors import ArtifactError
from tvm_ext.export.library_folder import cpu_flags
from tvm_ext.hardware.cpu.linker import find_compiler

FILES = [
    *("small.so", "CMakeLists.txt", "example.cpp", "small.h", "tvmx_model.c", "tvmx_model.h"),
]


def small() -> onnx.ModelProto:
    """Two inputs, one of them a scalar; a dynamic batch; an output that is an input."""
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Relu", ["m"], ["r"]),
        node("MatMul", ["r", "v"], ["n"]),
        node("Mul", ["n", "scale"], ["z"]),
        node("Identity", ["scale"], ["same"]),
    ]
    inputs = [value("x", ["N", 6]), value("scale", [])]
    return model(nodes, inputs, [value("z", ["N", 3]), value("same", [])], w=W, v=V)


@pytest.fixture(scope="module")
def compiled() -> tvm_ext.CompiledModel:
    return tvm_ext.compile(small(), HOST)


@pytest.fixture(scope="module")
def exported(compiled: tvm_ext.CompiledModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "small"
    files = compiled.export_library(folder, name="small")
    assert files == [folder / name for name in FILES]
    return folder


def wheel(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def test_the_header_says_what_the_model_is(exported: Path) -> None:
    header = (exported / "small.h").read_text()
    assert " * input  x: float32['N', 6]\n * input  scale: float32[]\n" in header
    assert "small_input0_shape[] = {-1, 6};" in header
    assert 'small_size_names[] = {"N"};' in header
    assert len((exported / "example.cpp").read_text().splitlines()) < 50


@pytest.mark.extended
@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is missing")
@pytest.mark.skipif(shutil.which("c++") is None, reason="a C++ compiler is missing")
def test_the_example_gives_the_numbers_of_python(
    exported: Path, compiled: tvm_ext.CompiledModel, tmp_path: Path
) -> None:
    build, alone = tmp_path / "build", tmp_path / "alone"
    for arguments in (
        ("-S", exported, "-B", build, f"-DPython_EXECUTABLE={sys.executable}"),
        ("--build", build),
        ("--install", build, "--prefix", alone),
    ):
        subprocess.run(["cmake", *map(str, arguments)], check=True, capture_output=True)
    x, scale = rand(2, 6), np.float32(3)
    x.tofile(tmp_path / "x")
    scale.tofile(tmp_path / "scale")
    command = [alone / "example", alone, "2", tmp_path / "x", tmp_path / "scale"]
    # The installed folder has all that it needs, wherever it lies.
    said = subprocess.run(command, env={}, check=True, capture_output=True, text=True).stdout
    wanted = compiled.run({"x": x, "scale": np.asarray(scale)})["z"]
    numbers = [float(word) for word in said.splitlines()[0].removeprefix("z, 6 values:").split()]
    np.testing.assert_array_equal(np.float32(numbers), wanted.ravel())
    assert said.splitlines()[1] == "same, 1 values: 3"


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="names libraries as Linux does")
def test_c_programs_run_it_in_all_ways(
    exported: Path, compiled: tvm_ext.CompiledModel, tmp_path: Path
) -> None:
    tvm, ffi = wheel("tvm"), wheel("tvm_ffi")
    libraries = [tvm / "lib/libtvm_runtime.so", tvm / "lib/libtvm_runtime_extra.so"]
    sources = [Path(__file__).with_name("run_model.c"), exported / "tvmx_model.c"]
    subprocess.run(
        [
            *(
                *find_compiler(),
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-pthread",
            ),
            *(f"-I{exported}", f"-I{ffi}/include", *sources, "-o", tmp_path / "run", "-ldl"),
            *("-Wl,--no-as-needed", *libraries, ffi / "lib/libtvm_ffi.so"),
            f"-Wl,-rpath,{tvm}/lib:{ffi}/lib",
        ],
        check=True,
    )
    run = subprocess.run(
        [tmp_path / "run", exported], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    x = (0.25 * (np.arange(24) % 7) - 0.5).astype("float32").reshape(4, 6)
    four, two = (
        compiled.run({"x": rows, "scale": np.float32(2).reshape(())})["z"].ravel()
        for rows in (x, x.ravel()[:12].reshape(2, 6))
    )
    assert run[0].startswith("nowhere/small.so cannot be read; expected")
    assert run[1] == "this CPU lacks nosuch, which the model was compiled for"
    for line, direct, wanted in ((2, 0, four), (3, 1, four), (5, 1, two), (6, 0, two)):
        word, where, *numbers = run[line].split()
        assert (word, where) == ("z", str(direct)), run[line]
        np.testing.assert_array_equal(np.float32(numbers), wanted)
    assert run[4] == "output 'z' has size 4 on axis 0, expected 2 for N"
    assert run[7] == "copied 1"
    assert run[8].startswith("input 'x' has dtype {2, 64, 1}, expected {2, 32, 1}")
    assert run[9].startswith("input 'x' has gaps")


def test_a_folder_is_written_whole_or_not_at_all(
    compiled: tvm_ext.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").touch()
    (tmp_path / "file").touch()
    for name, words in (
        ("taken", "something is there already"),
        ("file", "something is there already"),
        ("missing/folder", "No such file"),
    ):
        with pytest.raises(OutputPathError, match=words):
            compiled.export_library(tmp_path / name)

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OutputPathError, match=os.strerror(28)):
        compiled.export_library(tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["file", "taken"]


@pytest.mark.extended
def test_what_needs_python_or_a_gpu_is_refused(
    compiled: tvm_ext.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = model([node("Unique", ["x"], ["y"])], [value("x", [4])], [value("y", [None])])
    relu = model([node("Relu", ["x"], ["y"])], [value("x", [4])], [value("y", [4])])
    for_gpu = tvm_ext.compile(relu, "nvidia-h100")
    hosted = tvm_ext.compile(classifier(["a", "b", "c"]), HOST)
    for refusing, words in (
        (tvm_ext.compile(python, HOST), "TVM computes unique in Python"),
        (hosted, "it is for a GPU or has steps on the host"),
        (for_gpu, "it is for a GPU or has steps on the host"),
    ):
        with pytest.raises(ArtifactError, match=words) as caught:
            refusing.export_library(tmp_path / "new")
        assert "\n" not in str(caught.value)
    memory = replace(compiled.report.memory, copied_outputs=None)
    monkeypatch.setattr(compiled.report, "memory", memory)
    with pytest.raises(ArtifactError, match="may write to its inputs"):
        compiled.export_library(tmp_path / "new")


def test_the_command_exports_saved_models(compiled: tvm_ext.CompiledModel, tmp_path: Path) -> None:
    compiled.save(tmp_path / "m.tvmx")
    said = as_json("export", tmp_path / "m.tvmx", "-o", tmp_path / "new", "--name", "small")
    assert said["files"] == [str(tmp_path / "new" / name) for name in FILES]
    assert all(Path(file).stat().st_size > 0 for file in said["files"])
    message = refused("export", tmp_path / "m.tvmx", "-o", tmp_path / "new")
    assert "expected a new or an empty folder" in message


def test_cpu_flags_are_those_of_the_system(compiled: tvm_ext.CompiledModel) -> None:
    features = ("sse2", "sse3", "avx2", "crc32")
    target = compiled._target.model_copy(
        update={"required_features": features, "machine": "x86_64"}
    )
    assert cpu_flags(target) == ["pni", "sse4_2", "avx2"]
