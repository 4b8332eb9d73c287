"""``tvm-ext wafer csl``: files, what it says of them, and what it refuses."""

import importlib.util
import json
from functools import partial

import commands
import numpy as np
import onnx
import pytest

pytest.importorskip("xdsl", reason="xDSL is not installed: pip install 'tvm-ext[csl]'")

from csl_kernels import machine
from csl_machine import CslMachine
from small_models import W, mlp, rand

from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.wafer.csl import CslError, kernel_code
from tvm_ext.wafer.csl.model_kernel import model_kernel

invoke = partial(commands.invoke, "wafer", "csl")
succeed = partial(commands.succeed, "wafer", "csl")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "mlp.onnx"
    onnx.save(mlp(6), path)
    return path


@pytest.fixture(scope="module")
def fused(model):
    """The product with the ReLU, on 2x2 PEs."""
    found = model_kernel(model, "fused*", machine(2, 2), None, build_pipeline("O3"))
    return found, kernel_code(found.func, machine(2, 2), found.name)


def test_the_kernel_of_a_model_computes_its_layer(fused):
    found, code = fused
    assert found.schedule == "SUMMA"
    x = rand(6, 6)
    first, second = (shard.name for shard in code.shards if shard.role == "input")
    outputs = CslMachine(code)(**{first: x, second: W})
    (hidden,) = outputs.values()
    np.testing.assert_allclose(hidden, np.maximum(x @ W, 0), rtol=1e-5, atol=1e-6)


def test_files_and_what_is_said_of_them(model, fused, tmp_path):
    _, code = fused
    printed = succeed(model, "--kernel", "fused*", "--grid", "2x2", "-o", tmp_path / "code")
    written = {path.name: path.read_text() for path in (tmp_path / "code").iterdir()}
    assert written == dict(code.files)
    assert set(written) == {"pe_program.csl", "layout.csl", "collectives.csl"}
    lines = printed.splitlines()
    assert lines[0].startswith(f"{code.kernel} (SUMMA): 2x2 PEs, {code.bytes_per_pe} bytes")
    assert lines[1] == "  input x: 3x3 of 6x6 float32 a PE"
    assert sum(line.startswith("Saved ") for line in lines) == 3


def test_json_says_where_tensors_lie(model, tmp_path):
    arguments = ("--kernel", "fused*", "--grid", "2x2", "-o", tmp_path, "--json")
    found = json.loads(invoke(model, *arguments).stdout)
    assert (found["rows"], found["columns"], found["schedule"]) == (2, 2, "SUMMA")
    x = found["tensors"][0]
    assert (x["role"], x["tensor_shape"], x["shape"]) == ("input", [6, 6], [3, 3])
    assert (x["row_steps"], x["column_steps"]) == ([3, 0], [0, 3])
    assert [path.rsplit("/", 1)[-1] for path in found["files"]] == [
        "pe_program.csl",
        "layout.csl",
        "collectives.csl",
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kernel", "nothing"), "no kernel matches 'nothing'; expected one of "),
        (("--kernel", "*"), "2 kernels match '*'; expected one of "),
        (("--kernel", "fused*", "--target", "avx2"), "is not a mesh"),
        (("--kernel", "fused*", "--grid", "2"), "--grid is '2'; expected rows and columns"),
        (("--kernel", "fused*", "--grid", "0x4"), "0x4 PEs was asked for"),
    ],
)
def test_refusals_are_one_line(model, tmp_path, options, said):
    result = invoke(model, *options, "-o", tmp_path / "code")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "code").exists()


def test_without_xdsl_the_model_is_not_even_read(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = invoke(tmp_path / "none.onnx", "--kernel", "x", "-o", tmp_path)
    assert result.exit_code == 2
    assert "pip install 'tvm-ext[csl]'" in result.stderr


def test_a_name_that_several_kernels_begin_with_is_exact_first(model):
    both = model_kernel(model, "matmul", machine(2, 2), None, build_pipeline("O0"))
    assert both.name == "matmul"
    with pytest.raises(CslError, match=r"2 kernels match 'matmul\*'"):
        model_kernel(model, "matmul*", machine(2, 2), None, build_pipeline("O0"))
