"""Code generation: kernels in objects that are made side by side, one program of them."""

import threading
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from small_models import model, node, rand, value
from tvm import tirx
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler.kernel_code import KernelCode
from tvm_ext.errors import BuildError
from tvm_ext.passes import propagate_nan

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
def objects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels of which objects are made."""
    found: list[str] = []
    make = KernelCode._object

    def noted(self: KernelCode, functions: dict[str, tirx.PrimFunc], key: str) -> object:
        found.extend(functions)
        return make(self, functions, key)

    monkeypatch.setattr(KernelCode, "_object", noted)
    return found


def reference(proto: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    result: np.ndarray = session.run(None, inputs)[0]
    return result


@pytest.mark.extended
def test_each_kernel_is_made_once_and_all_are_in_the_program(objects: list[str]) -> None:
    proto, x = chain(6), {"x0": rand(2, 8)}
    made = tvm_ext.compile(proto, HOST, opt_level="O0")
    assert len(objects) == len(set(objects)) >= len(made.report.kernels)
    np.testing.assert_allclose(made.run(x)["y"], reference(proto, x), rtol=1e-4, atol=1e-6)


def test_code_begins_while_kernels_are_scheduled(
    objects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a pass makes of a kernel later is what is in the program."""
    begun: list[int] = []
    propagate = propagate_nan.with_constants_first

    def changed(func: tirx.PrimFunc) -> tirx.PrimFunc:
        marked = func.with_attr("begun", len(begun) // 12)
        begun.append(len(objects))
        return propagate(marked)

    proto, x = chain(6), {"x0": rand(2, 8)}
    monkeypatch.setattr(propagate_nan, "with_constants_first", changed)
    monkeypatch.setattr(propagate_nan, "once_for_kernel", lambda _name, _func, make: make())
    made = tvm_ext.compile(proto, HOST, opt_level="O0")
    assert begun[11] > 0
    kernels = [name for name in objects if "kernels" not in name]
    assert len(kernels) > len(made.report.kernels)
    np.testing.assert_allclose(made.run(x)["y"], reference(proto, x), rtol=1e-4, atol=1e-6)


def test_few_kernels_are_one_object_of_the_program_itself(objects: list[str]) -> None:
    tvm_ext.compile(chain(1), HOST)
    assert not objects


@pytest.mark.extended
def test_a_program_is_the_same_whoever_was_faster() -> None:
    first, second = (tvm_ext.compile(chain(6), HOST, opt_level="O0") for _ in range(2))
    assert first._program.library() == second._program.library()


@pytest.mark.extended
def test_no_thread_outlives_a_kernel_that_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: KernelCode, functions: dict[str, tirx.PrimFunc], key: str) -> None:
        raise ValueError("no code")

    monkeypatch.setattr(KernelCode, "_object", fail)
    with pytest.raises(BuildError, match="no code can be generated"):
        tvm_ext.compile(chain(6), HOST, opt_level="O0")
    assert not [one for one in threading.enumerate() if one.name.startswith("tvm-ext-code")]


def arithmetic(factor: int) -> tirx.PrimFunc:
    """What ``ComputePrimValue`` makes of ``n * factor``."""
    n = tirx.Var("n", "int64")
    body = tirx.Return(n * factor)
    func = tirx.PrimFunc([n], body, tvm.ir.PrimType("int64"))
    return func.with_attrs({"tirx.is_host_func": True, "global_symbol": f"expr{factor}"})


def test_arithmetic_of_sizes_is_one_object(objects: list[str]) -> None:
    functions = {tvm.ir.GlobalVar(f"expr{factor}"): arithmetic(factor) for factor in (2, 3)}
    with KernelCode(HOST.tvm_target()) as code:
        made = code.objects(functions)
    assert len(objects) == 2
    # And the script that gives its functions their names.
    assert len(made.modules) == 2
