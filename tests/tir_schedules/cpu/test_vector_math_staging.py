"""Functions of functions: taken apart, so that compiling them takes no longer than one each."""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from machines import MACHINE
from thoroughness import ALL_CASES
from tvm import s_tir, te, tirx
from tvm_ffi import structural_walk
from unoptimised import built

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.cpu.vector_math.rewrite import with_staged_calls, with_vector_math
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel


def applied(function: Callable[[Any], Any], y: te.Tensor, i: tirx.Var) -> tirx.Expr:
    return function(y[i])


def chain(depth: int, size: int) -> tirx.PrimFunc:
    """tanh and exp of one another, ``depth`` of them."""
    x = te.placeholder((size,), "float32", "x")
    y = x
    for i in range(depth):
        function = te.exp if i % 2 else te.tanh
        y = te.compute((size,), partial(applied, function, y))
    return te.create_prim_func([x, y])


def reference(x: np.ndarray, depth: int) -> np.ndarray:
    y = x.astype("float64")
    for i in range(depth):
        y = np.exp(y) if i % 2 else np.tanh(y)
    return y


@pytest.mark.parametrize("size", [1, 6, 64, 100])
def test_a_deep_chain_compiles_and_is_right(size: int) -> None:
    machine = host_description()
    scheduled, _ = schedule_kernel(chain(8, size), machine)
    kernel = with_vector_math(scheduled).func.with_attr("global_symbol", "main")
    library = built({"main": kernel})
    x = np.linspace(-3, 3, size).astype("float32")
    found = tvm.runtime.tensor(np.zeros(size, "float32"))
    library["main"](tvm.runtime.tensor(x), found)
    np.testing.assert_allclose(found.numpy(), reference(x, 8), rtol=2e-5)


def test_one_function_needs_no_array() -> None:
    scheduled, _ = schedule_kernel(chain(1, 64), MACHINE)
    assert "staged" not in with_vector_math(scheduled).func.script()


def test_arrays_stand_outside_of_the_vector_loop() -> None:
    scheduled, _ = schedule_kernel(chain(3, 64), MACHINE)
    text = with_vector_math(scheduled).func.script()
    assert text.count("= T.alloc_buffer") == 2
    assert text.index("staged1 = T.alloc_buffer") < text.index("T.vectorized")


@pytest.mark.extended
@pytest.mark.parametrize("choose", [tirx.if_then_else, tirx.Select])
@pytest.mark.parametrize("vectorised", [False, True])
def test_what_leaves_a_branch_stays_under_its_condition(choose: Any, vectorised: bool) -> None:
    x = te.placeholder((32,), "float32", "x")

    def body(i: tirx.Var) -> tirx.Expr:
        return te.tanh(choose(i > 0, te.log(te.exp(te.exp(x[tirx.max(i - 1, 0)]))), x[i]))

    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((32,), body, "y")]))
    if vectorised:
        sch.vectorize(sch.get_loops(sch.get_sblock("y"))[0])
    func = sch.mod["main"]
    staged = with_staged_calls(func.body, lambda call: str(call.op.name).startswith("tirx.e"))
    name = "T.if_then_else(" if choose is tirx.if_then_else else "T.Select("
    assert re.search(rf"staged0.* = {re.escape(name)}", str(staged))
    kernel = with_vector_math(func).func.with_attr("global_symbol", "main")
    library = built({"main": kernel})
    values = np.linspace(-3, 1, 32).astype("float32")
    found = tvm.runtime.tensor(np.zeros(32, "float32"))
    library["main"](tvm.runtime.tensor(values), found)
    wanted = np.tanh([values[0], *np.exp(values[:-1].astype("float64"))])
    np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-6)


def test_what_is_known_outside_of_a_branch_is_used_inside() -> None:
    x = te.placeholder((32,), "float32", "x")

    def body(i: tirx.Var) -> tirx.Expr:
        inner = te.exp(te.exp(x[i]))
        return tirx.Select(inner > 2.0, inner, te.exp(te.exp(x[i])) * 0.1)

    func = te.create_prim_func([x, te.compute((32,), body)])
    text = str(with_staged_calls(func.body, lambda _: True))
    assert "staged1" in text
    assert "staged2" not in text


def test_a_function_called_twice_is_computed_once() -> None:
    x = te.placeholder((32,), "float32", "x")
    t = te.compute((32,), lambda i: te.tanh(x[i]))
    square = te.compute((32,), lambda i: tirx.pow(t[i], tirx.const(2.0, "float32")))
    leaky = te.compute((32,), lambda i: tirx.Select(square[i] > 0.5, square[i], square[i] * 0.1))
    machine = host_description()
    scheduled, _ = schedule_kernel(te.create_prim_func([x, leaky]), machine)
    result = with_vector_math(scheduled)
    kernel = result.func.with_attr("global_symbol", "main")
    library = built({"main": kernel})
    values = np.linspace(-3, 3, 32).astype("float32")
    found = tvm.runtime.tensor(np.zeros(32, "float32"))
    library["main"](tvm.runtime.tensor(values), found)
    wanted = np.tanh(values.astype("float64")) ** 2
    np.testing.assert_allclose(
        found.numpy(), np.where(wanted > 0.5, wanted, wanted * 0.1), rtol=1e-5, atol=1e-7
    )
    assert result.replaced["tanh"] == 1


def test_a_comparison_in_the_argument() -> None:
    x = te.placeholder((32,), "float32", "x")
    kept = te.compute((32,), lambda i: (x[i] > 0.5).astype("float32") * x[i])
    func = te.create_prim_func([x, te.compute((32,), lambda i: te.exp(kept[i]))])
    machine = host_description()
    kernel = with_vector_math(schedule_kernel(func, machine)[0]).func
    values = np.linspace(-3, 3, 32).astype("float32")
    found = tvm.runtime.tensor(np.zeros(32, "float32"))
    built({"main": kernel})["main"](tvm.runtime.tensor(values), found)
    wanted = np.exp(np.where(values > 0.5, values, 0.0))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-6)


def quantised(value: tirx.Expr, scale: float) -> tirx.Expr:
    """The nearest of 256 steps, as QuantizeLinear and DequantizeLinear give it."""
    steps = te.nearbyint(te.max(te.min(value, 0.5), -0.5) / scale) + 127.0
    numbers = steps.astype("int32").astype("uint8").astype("float32")
    return (numbers - 127.0) * tirx.const(scale, "float32")


@pytest.mark.extended
@pytest.mark.parametrize("steps", [1, 2, 3, 12])
def test_a_function_under_steps_of_quantisation(steps: int) -> None:
    x = te.placeholder((64,), "float32", "x")

    def body(i: tirx.Var) -> tirx.Expr:
        value = te.erf(x[i])
        for _ in range(steps):
            value = quantised(value, 0.125)
        return value

    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((64,), body, "y")]))
    sch.vectorize(sch.get_loops(sch.get_sblock("y"))[0])
    kernel = with_vector_math(sch.mod["main"]).func.with_attr("global_symbol", "main")
    library = built({"main": kernel})
    values = np.linspace(-1, 1, 64).astype("float32")
    found = tvm.runtime.tensor(np.zeros(64, "float32"))
    library["main"](tvm.runtime.tensor(values), found)
    errors = found.numpy() - np.clip([math.erf(value) for value in values], -0.5, 0.5)
    assert np.abs(errors).max() <= 0.0626
    np.testing.assert_array_equal(found.numpy() % 0.125, 0)


def test_a_long_chain_of_products_is_cut() -> None:
    """TVM visits the vector that a number multiplies twice, so 40 of them would never end."""
    x = te.placeholder((64,), "float32", "x")

    def body(i: tirx.Var) -> tirx.Expr:
        value = x[i]
        for _ in range(40):
            value = te.nearbyint(value) * 1.5
        return value

    sch = s_tir.Schedule(te.create_prim_func([x, te.compute((64,), body, "y")]))
    sch.vectorize(sch.get_loops(sch.get_sblock("y"))[0])
    staged = with_staged_calls(sch.mod["main"].body, lambda _: False)
    library = built({"f": sch.mod["main"].with_body(staged)})
    values = np.linspace(-3, 3, 64).astype("float32")
    found = tvm.runtime.tensor(np.zeros(64, "float32"))
    library["f"](tvm.runtime.tensor(values), found)
    wanted = values
    for _ in range(40):
        wanted = np.rint(wanted) * np.float32(1.5)
    np.testing.assert_array_equal(found.numpy(), wanted)


BFLOAT16_CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "alone": (te.exp, np.exp),
    "of arithmetic": (lambda v: te.exp(v * v - v), lambda v: np.exp(v * v - v)),
    "within arithmetic": (lambda v: te.exp(v / 2) * 2 - 1, lambda v: np.exp(v / 2) * 2 - 1),
    "of one another": (lambda v: te.tanh(te.exp(v)) * v, lambda v: np.tanh(np.exp(v)) * v),
    "between casts": (
        lambda v: te.exp(v.astype("float32") - 1.0).astype("bfloat16"),
        lambda v: np.exp(v - 1),
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", BFLOAT16_CASES)
def test_functions_of_bfloat16(name: str) -> None:
    ours, wanted = BFLOAT16_CASES[name]
    x = te.placeholder((64,), "bfloat16", "x")
    machine = host_description()
    func = te.create_prim_func([x, te.compute((64,), lambda i: ours(x[i]), "y")])
    kernel = with_vector_math(schedule_kernel(func, machine)[0]).func
    values = np.linspace(-3, 3, 64).astype(ml_dtypes.bfloat16)
    found = tvm.runtime.tensor(np.zeros(64, ml_dtypes.bfloat16))
    built({"main": kernel})["main"](tvm.runtime.tensor(values), found)
    exact = wanted(values.astype("float64"))
    np.testing.assert_allclose(found.numpy().astype("float64"), exact, rtol=5e-3, atol=2e-2)


def folded(depth: int, size: int) -> tirx.PrimFunc:
    """Steps that read what is before them three times, to choose from it."""
    x = te.placeholder((size,), "int64", "x")

    def step(y: te.Tensor, by: int, i: tirx.Var) -> tirx.Expr:
        return tirx.Select(y[i] < by, y[i] + 2 * by, y[i] - 1)

    y = x
    for k in range(depth):
        y = te.compute((size,), partial(step, y, 3 + k))
    return te.create_prim_func([x, y])


@pytest.mark.extended
@pytest.mark.parametrize("size", [1, 64, 100])
def test_a_choice_that_is_read_again_and_again_is_made_once(size: int) -> None:
    # What is made once at each of three steps is at each of five.
    machine, depth = host_description(), 5 if ALL_CASES else 3
    scheduled, _ = schedule_kernel(folded(depth, size), machine)
    kernel = with_vector_math(scheduled).func.with_attr("global_symbol", "main")
    library = built({"main": kernel})
    x = np.arange(size) - size // 2
    found = tvm.runtime.tensor(np.zeros(size, "int64"))
    library["main"](tvm.runtime.tensor(x), found)
    expected = x
    for k in range(depth):
        expected = np.where(expected < 3 + k, expected + 2 * (3 + k), expected - 1)
    np.testing.assert_array_equal(found.numpy(), expected)
    stores = structure(kernel, tirx.BufferStore)
    assert max(len(structure(store.value, tirx.Select)) for store in stores) == 1


def test_what_is_alike_in_all_lanes_stays_in_the_vector() -> None:
    n, y = tirx.Var("n", "int64"), tirx.decl_buffer((4,), "int64")
    two, size = tirx.const(2, "int64"), tirx.Select(n == 1, n + 3, n)
    lane = tirx.Var("lane", "int64")
    value = size
    for k in range(4):
        value = tirx.Select(lane == k, tirx.Select(tirx.Div(size, two) > k, size + k, n - k), value)
    store = tirx.BufferStore(y, value, [lane])
    loop = tirx.For(lane, two - two, two + two, tirx.ForKind.VECTORIZED, store)
    assert with_staged_calls(loop, lambda _call: False).same_as(loop)


def structure(node: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    structural_walk(node, (kind, found.append))
    return found
