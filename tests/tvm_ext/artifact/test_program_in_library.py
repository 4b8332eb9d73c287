"""A library is loaded with its weights in memory once, and with the same results as by TVM."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from tvm_ext.artifact import (
    TargetRecord,
    export_library_bytes,
    library,
    read_artifact,
    write_artifact,
)
from tvm_ext.artifact.program_in_library import bytes_of_tables, find_program
from tvm_ext.errors import ArtifactError
from tvm_ext.tensor_spec import TensorSpec

ROWS = 64
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="TVM loads it by itself elsewhere")

# Prints by how much resident memory was above the one before at most.
PEAK = """
import sys
from tvm_ext.artifact import read_artifact

def status(name):
    lines = (line.split() for line in open("/proc/self/status"))
    return next(int(line[1]) << 10 for line in lines if line[0] == name + ":")

small, large = sys.argv[1:]
read_artifact(small).load_module()
before = status("VmRSS")
read_artifact(large).load_module()
print(max(status("VmHWM") - before, 0))
"""


def program_of(columns: int) -> bytes:
    """A product with two weights of ``ROWS`` times ``columns`` numbers, and a small one."""
    random = np.random.default_rng(3)
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((2, ROWS), "float32"))
    weights = [relax.const(random.standard_normal((ROWS, columns), "float32")) for _ in range(2)]
    small = relax.const(random.standard_normal(columns, "float32"))
    with builder.function("main", [x]):
        products = [builder.emit(relax.op.matmul(x, weight)) for weight in weights]
        builder.emit_func_output(builder.emit(relax.op.add(relax.op.add(*products), small)))
    return export_library_bytes(tvm.compile(builder.get(), target="llvm"))


@pytest.fixture(scope="module")
def large() -> bytes:
    return program_of(512)


@pytest.fixture
def saved(tmp_path, large) -> Path:
    return save(tmp_path / "large.tvmx", large)


def save(path: Path, content: bytes) -> Path:
    write_artifact(
        path,
        library=content,
        report_json="{}",
        model_name="product",
        inputs=[TensorSpec("x", "float32", (2, ROWS))],
        outputs=[TensorSpec("y", "float32", (2, 512))],
        target=TargetRecord(name="cpu", kind="llvm"),
    )
    return path


def found_in(content: bytes):
    opened = library.OpenLibrary(content, 0, len(content))
    return find_program(opened.find, opened.read_into, opened.size)


def result_of(module) -> np.ndarray:
    x = np.linspace(-1, 1, 2 * ROWS, dtype="float32").reshape(2, ROWS)
    return relax.VirtualMachine(module, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


@ON_LINUX
@pytest.mark.parametrize("source", ["file", "memory"])
def test_results_are_those_of_the_library_as_tvm_loads_it(source, saved, large, monkeypatch):
    expected = result_of(library._loaded_as_it_is(large))
    monkeypatch.setattr(library, "_loaded_as_it_is", None)
    given = read_artifact(saved).library if source == "file" else large
    np.testing.assert_array_equal(result_of(library.load_library(given)), expected)


def test_large_weights_are_found_in_their_places(large):
    found = found_in(large)
    assert [length for _, length in found.weights] == [ROWS * 512 * 4] * 2
    first = np.random.default_rng(3).standard_normal((ROWS, 512), "float32").tobytes()
    place, length = found.weights[0]
    assert large[place : place + length] == first


@pytest.mark.extended
def test_a_program_with_small_weights_is_left_to_tvm():
    content = program_of(8)
    assert found_in(content) is None
    assert np.abs(result_of(library.load_library(content))).max() > 0


def test_the_code_is_written_without_weights(large, tmp_path):
    found = found_in(large)
    with (tmp_path / "code.so").open("wb") as file:
        library._write_library(large, file, found)
    written = (tmp_path / "code.so").read_bytes()
    assert len(written) == len(large)
    assert written[: found.begin] == large[: found.begin]
    assert written[found.end :] == large[found.end :]
    for place, length in found.weights:
        assert not any(written[place : place + length])


def test_a_program_of_another_form_is_left_to_tvm(large):
    """Each number ahead of the first large weight is changed, and none makes it fail."""
    found = found_in(large)
    for place in range(found.begin, found.weights[0][0], 4):
        changed = bytearray(large)
        changed[place : place + 4] = b"\xff\xff\xff\xff"
        found_in(bytes(changed))
    for end in range(found.begin, found.begin + 400, 7):
        assert found_in(large[:end]) is None


def test_a_file_that_is_written_to_meanwhile_is_refused(saved):
    loaded = read_artifact(saved).library
    with ExitStack() as stack:
        stack.enter_context(loaded.opened())
        status = saved.stat()
        os.utime(saved, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
        with pytest.raises(ArtifactError, match="the file is damaged"):
            stack.close()


@pytest.mark.extended
@ON_LINUX
def test_weights_are_in_memory_once(tmp_path):
    columns = 1 << 16
    small = save(tmp_path / "small.tvmx", program_of(8))
    big = save(tmp_path / "big.tvmx", program_of(columns))
    answer = subprocess.run(
        [sys.executable, "-c", PEAK, str(small), str(big)],
        check=True,
        capture_output=True,
        text=True,
    )
    weights = 2 * ROWS * columns * 4
    assert weights < int(answer.stdout) < 1.25 * weights


def table_bytes(content: bytes) -> int | None:
    opened = library.OpenLibrary(content, 0, len(content))
    return bytes_of_tables(opened.find, opened.read_into, opened.size)


def test_tables_of_a_program_are_counted_without_its_weights(large):
    found = table_bytes(large)
    assert found == table_bytes(program_of(8))
    # Three constants, a kernel for each operator, main, and what allocates.
    assert 2_000 < found < 10_000
    assert table_bytes(b"no library") is None
