"""Numbers at the ends of their types, ties, infinities and NaN: both code generators make the same.

All operators of a type are results of one kernel, so that it is compiled once by each generator.
"""

import ml_dtypes
import numpy as np
import pytest
import tvm
from thoroughness import one_in, some_of
from tvm import te, tirx
from tvm.script import tirx as T
from unoptimised import HOST

from tvm_ext.mlir.code_generation import with_mlir_code
from tvm_ext.mlir.compare_kernels import tvm_code
from tvm_ext.mlir.execution import CompiledKernel
from tvm_ext.mlir.from_tensorir import ON_TENSORS, convert_kernel

SIGNED = ["int8", "int16", "int32", "int64"]
INTEGERS = [*SIGNED, "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["bfloat16", "float16", "float64", "float32"]


def numpy_type(dtype):
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def by_both(kernel, inputs):
    """The results of a kernel by TVM's code, by MLIR's from linalg, and by MLIR's from loops."""
    count = len(inputs)
    shapes = [tuple(int(size) for size in one.shape) for one in kernel.params[count:]]
    kinds = [numpy_type(str(one.dtype)) for one in kernel.params[count:]]
    sources = {"ours": kernel, "loops": with_mlir_code(kernel, "loops", HOST)}
    library = tvm_code(sources, HOST)
    found = {}
    for name in sources:
        results = [np.zeros(*one) for one in zip(shapes, kinds, strict=True)]
        tensors = [tvm.runtime.tensor(one) for one in (*inputs, *results)]
        library[name](*tensors)
        found[name] = [one.numpy() for one in tensors[count:]]
    found["linalg"] = [np.zeros(*one) for one in zip(shapes, kinds, strict=True)]
    converted = convert_kernel(kernel, "kernel")
    assert converted.form == ON_TENSORS, converted.loops_because
    CompiledKernel(converted)([*(one.copy() for one in inputs), *found["linalg"]])
    return found


def assert_alike(kernel, names, inputs, digits=0, least=None):
    """Asserts that results are the same: integers all, other numbers up to their last digits, and
    numbers below ``least`` up to its own.
    """
    found = by_both(kernel, inputs)
    for place, name in enumerate(names):
        ours = found["ours"][place]
        for way in ("loops", "linalg"):
            theirs = found[way][place]
            if ours.dtype.kind in "biu":
                np.testing.assert_array_equal(theirs, ours, f"{name}, {way}")
                continue
            epsilon = float(ml_dtypes.finfo(ours.dtype).eps)
            wide = [one.astype(np.float64) for one in (theirs, ours)]
            tiny = float(ml_dtypes.finfo(ours.dtype).tiny)
            near = tiny if least is None else least * digits * epsilon
            np.testing.assert_allclose(
                *wide, rtol=digits * epsilon, atol=near, err_msg=f"{name}, {way}"
            )


def elementwise(operators, dtype, count, operands):
    """A kernel with a result for each of the operators of arrays of this type."""
    given = [te.placeholder((count,), dtype) for _ in range(operands)]

    def computed(operator):
        return te.compute((count,), lambda i: operator(*(one[i] for one in given)))

    return te.create_prim_func([*given, *map(computed, operators.values())])


def of_two(operators, dtype, count):
    return elementwise(operators, dtype, count, 2)


def of_one(operators, dtype, count):
    return elementwise(operators, dtype, count, 1)


def integers(dtype):
    info = np.iinfo(dtype)
    few = [0, 1, 2, 3, 7, info.max, info.max - 1, info.max // 2, info.min, info.min + 1]
    few += [-1, -2, -3, -7] if info.min else []
    some = np.random.default_rng(0).integers(info.min, info.max, 50, dtype, endpoint=True)
    return np.concatenate([np.array(few, dtype), some])


def floats(dtype):
    few = [0.0, 0.5, 1.5, 2.5, 0.49999997, 1, 3, 7, 127.5, 1e-40, 1e-8, 1e30, 70000, np.inf, np.nan]
    some = np.random.default_rng(0).uniform(-5, 5, 30)
    with np.errstate(over="ignore"):
        return np.concatenate([few, np.negative(few), some]).astype(numpy_type(dtype))


COMPARED = {
    "max": tirx.max,
    "min": tirx.min,
    "less": lambda a, b: a < b,
    "at most": lambda a, b: a <= b,
    "equal": tirx.EQ,
    "not equal": tirx.NE,
    "select": lambda a, b: tirx.Select(a > b, b, a),
}
SUMS = {"add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "times": lambda a, b: a * b}
DIVISIONS = {
    "floor division": tirx.floordiv,
    "floor remainder": tirx.floormod,
    "division": tirx.truncdiv,
    "remainder": tirx.truncmod,
}
BITS = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a, b: tirx.bitwise_not(a),
    "count": lambda a, b: tirx.popcount(a),
    "absolute": lambda a, b: tirx.abs(a),
}
SHIFTS = {"left": lambda a, b: a << b, "right": lambda a, b: a >> b}


@pytest.mark.extended
@pytest.mark.parametrize("dtype", one_in(4, some_of(INTEGERS)))
def test_operators_of_integers(dtype):
    x = integers(dtype)
    y = np.roll(x, 5)
    # TVM's code ends the process where the quotient has no value.
    y[(y == 0) | (y == np.array(-1).astype(dtype)) & (dtype in SIGNED)] = 3
    operators = {**COMPARED, **SUMS, **DIVISIONS, **BITS}
    assert_alike(of_two(operators, dtype, len(x)), operators, [x, y])


@pytest.mark.extended
@pytest.mark.parametrize("dtype", some_of(INTEGERS))
def test_shifts(dtype):
    x = integers(dtype)
    places = (np.arange(len(x)) % (8 * x.itemsize)).astype(dtype)
    assert_alike(of_two(SHIFTS, dtype, len(x)), SHIFTS, [x, places])


@pytest.mark.extended
@pytest.mark.parametrize("dtype", some_of(["int32", "uint32", "uint64", "int64"]))
def test_leading_zeros(dtype):
    x = integers(dtype)
    operators = {"leading zeros": tirx.clz}
    assert_alike(of_one(operators, dtype, len(x)), operators, [np.where(x == 0, 1, x)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", some_of(FLOATS))
def test_operators_of_floating_point_numbers(dtype):
    x = floats(dtype)
    operators = {**COMPARED, **SUMS, "divide": lambda a, b: a / b}
    assert_alike(of_two(operators, dtype, len(x)), operators, [x, np.roll(x, 7)])


ROUNDED = {
    "half to even": tirx.nearbyint,
    "round": tirx.round,
    "floor": tirx.floor,
    "ceil": tirx.ceil,
    "trunc": tirx.trunc,
    "absolute": tirx.abs,
    "root": tirx.sqrt,
    "is no number": tirx.isnan,
    "is infinite": tirx.isinf,
    "is finite": tirx.isfinite,
}


@pytest.mark.extended
@pytest.mark.parametrize("dtype", some_of(["float32", "float64", "float16"]))
def test_roundings(dtype):
    x = floats(dtype)
    assert_alike(of_one(ROUNDED, dtype, len(x)), ROUNDED, [x], digits=1)


POWERS = {
    f"to the power of {n}": lambda a, n=n: tirx.power(a, tirx.const(n, a.dtype))
    for n in (0.5, 2.0, 3.0, -1.0, -0.5, 0.0, 1.0, 1.5)
}
FUNCTIONS = {
    name: getattr(tirx, name)
    for name in (
        *("exp", "exp2", "log", "log2", "log10", "rsqrt", "erf", "sin", "cos", "tan"),
        *("asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid"),
    )
}


@pytest.mark.extended
@pytest.mark.parametrize("dtype", some_of(["float32", "float64"]))
def test_functions(dtype):
    x = floats(dtype)
    # TVM's own tanh is a difference of exponentials.
    assert_alike(of_one(FUNCTIONS, dtype, len(x)), FUNCTIONS, [x], digits=16, least=1)


def test_logarithms_of_numbers_near_one():
    x = np.array([0, 1e-40, 1e-12, -1e-8, 1e-4, 0.5, 1e30], "float32")
    operators = {"log1p": tirx.log1p}
    assert_alike(of_one(operators, "float32", len(x)), operators, [x], digits=2)


@pytest.mark.extended
@pytest.mark.parametrize("dtype", some_of(["float32", "float64"]))
def test_powers(dtype):
    x = floats(dtype)
    assert_alike(of_one(POWERS, dtype, len(x)), POWERS, [x], digits=4)


@pytest.mark.extended
@pytest.mark.parametrize("source", one_in(4, some_of(["bool", *INTEGERS, *FLOATS])))
def test_casts(source):
    targets = [one for one in ("bool", *INTEGERS, *FLOATS) if one != source]
    if source == "bool":
        x = np.arange(40) % 3 == 0
    elif source in INTEGERS:
        x = integers(source)
    else:
        # What an integer does not hold has no value.
        x = np.abs(np.concatenate([floats(source)[:8], np.linspace(0, 127, 40)]))
        x = x.astype(numpy_type(source))
    operators = {f"to {one}": lambda a, one=one: a.astype(one) for one in targets}
    assert_alike(of_one(operators, source, len(x)), operators, [x], digits=1)


@pytest.mark.extended
@pytest.mark.parametrize("source", some_of(FLOATS))
def test_casts_of_floating_point_numbers_to_others(source):
    """NaN, infinities and ties; and NaN is true."""
    targets = [one for one in ("bool", *FLOATS) if one != source]
    operators = {f"to {one}": lambda a, one=one: a.astype(one) for one in targets}
    x = floats(source)
    assert_alike(of_one(operators, source, len(x)), operators, [x], digits=1)


@T.prim_func(s_tir=True)
def looked_up(
    a: T.Buffer((64,), "uint8"),
    b: T.Buffer((64,), "uint8"),
    table: T.Buffer((256,), "float32"),
    c: T.Buffer((64,), "float32"),
):
    """The sum begins again at 0 behind 255."""
    for i in range(64):
        with T.sblock("looked_up"):
            x = T.axis.spatial(64, i)
            c[x] = table[T.Cast("int32", a[x] + b[x])]


@T.prim_func(s_tir=True)
def narrowed(
    a: T.Buffer((64,), "int32"),
    table: T.Buffer((256,), "float32"),
    c: T.Buffer((64,), "float32"),
):
    """Only the last eight bits of a number say the place."""
    for i in range(64):
        with T.sblock("narrowed"):
            x = T.axis.spatial(64, i)
            c[x] = table[T.Cast("int32", T.Cast("uint8", a[x]))]


@pytest.mark.extended
def test_places_of_narrow_types_begin_again():
    table = np.arange(256, dtype="float32")
    a, b = (np.random.default_rng(n).integers(0, 256, 64).astype("uint8") for n in range(2))
    found = by_both(looked_up, [a, b, table])
    for way in found:
        np.testing.assert_array_equal(found[way][0], table[a + b], way)
    wide = np.random.default_rng(0).integers(-1000, 1000, 64).astype("int32")
    found = by_both(narrowed, [wide, table])
    for way in found:
        np.testing.assert_array_equal(found[way][0], table[wide.astype("uint8")], way)


@T.prim_func(s_tir=True)
def one_after_the_other(
    a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32"), c: T.Buffer((16,), "float32")
):
    """The second statement of the block reads what the first stores."""
    for i in range(16):
        with T.sblock("both"):
            x = T.axis.spatial(16, i)
            b[x] = a[x] + T.float32(1)
            c[x] = b[x] * T.float32(2)


def test_a_statement_reads_what_the_one_before_stores():
    x = np.arange(16, dtype="float32")
    found = by_both(one_after_the_other, [x])
    for way in found:
        np.testing.assert_array_equal(found[way][1], (x + 1) * 2, way)


@pytest.mark.extended
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_arrays_without_elements(shape):
    a = te.placeholder(shape, "float32")
    kernel = te.create_prim_func([a, te.compute(shape, lambda *i: a(*i) + 1)])
    found = by_both(kernel, [np.zeros(shape, "float32")])
    assert [one[0].shape for one in found.values()] == [shape] * 3


def test_a_sum_of_nothing_is_its_first_value():
    a = te.placeholder((4, 3), "float32")
    k = te.reduce_axis((0, 3))
    kernel = te.create_prim_func([a, te.compute((4,), lambda i: te.sum(a[i, k], axis=k))])
    found = by_both(kernel, [np.ones((4, 3), "float32")])
    for one in found.values():
        np.testing.assert_array_equal(one[0], np.full(4, 3, "float32"))


def test_a_number_alone():
    a = te.placeholder((), "float32")
    kernel = te.create_prim_func([a, te.compute((), lambda: a() * 2)])
    found = by_both(kernel, [np.array(1.5, "float32")])
    assert [float(one[0]) for one in found.values()] == [3.0] * 3
