"""Code generation: kernels in objects that are made side by side, one program of them."""

import threading
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler import build
from tvm_ext.errors import BuildError

OPERATORS = ("Softmax", "Exp", "Sigmoid", "Tanh", "Neg", "Abs", "Sqrt", "Erf")


def chain(layers: int) -> onnx.ModelProto:
    """As many kernels as layers where nothing is fused: each has a width of its own."""
    names = [f"x{place}" for place in range(layers)] + ["y"]
    nodes, weights = [], {}
    for place, (before, after) in enumerate(pairwise(names)):
        weights[f"w{place}"] = rand(8 + place, 9 + place, seed=place)
        nodes += [
            node("MatMul", [before, f"w{place}"], [f"{after}_sum"]),
            node(OPERATORS[place % len(OPERATORS)], [f"{after}_sum"], [after]),
        ]
    return model(nodes, [value("x0", [2, 8])], [value("y", None)], **weights)


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the kernels in each object that is made."""
    found: list[list[str]] = []
    make = build._object

    def noted(kernels: tvm.IRModule, target: tvm.target.Target) -> bytes:
        found.append([str(var.name_hint) for var in kernels.functions])
        return make(kernels, target)

    monkeypatch.setattr(build, "_object", noted)
    return found


@pytest.mark.extended
def test_kernels_are_shared_out_and_all_are_in_the_program(objects: list[list[str]]) -> None:
    proto = chain(6)
    made = tvm_ext.compile(proto, HOST, opt_level="O0")
    assert len(objects) > 2
    assert all(len(names) >= 4 for names in objects)
    names = [name for kernels in objects for name in kernels]
    assert len(names) == len(set(names))
    assert {record.name for record in made.report.kernels} <= set(names)
    x = {"x0": rand(2, 8)}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    np.testing.assert_allclose(made.run(x)["y"], session.run(None, x)[0], rtol=1e-4, atol=1e-6)


def test_few_kernels_are_one_object_of_the_program_itself(objects: list[list[str]]) -> None:
    tvm_ext.compile(chain(1), HOST)
    assert not objects


@pytest.mark.extended
def test_a_program_is_the_same_whoever_was_faster() -> None:
    first, second = (tvm_ext.compile(chain(6), HOST, opt_level="O0") for _ in range(2))
    assert first._program.library() == second._program.library()


@pytest.mark.extended
def test_no_thread_outlives_a_kernel_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(kernels: tvm.IRModule, target: tvm.target.Target) -> None:
        raise ValueError("no code")

    monkeypatch.setattr(build, "_object", fail)
    with pytest.raises(BuildError, match="no code can be generated"):
        tvm_ext.compile(chain(6), HOST, opt_level="O0")
    assert not [one for one in threading.enumerate() if one.name.startswith("tvm-ext-code")]
