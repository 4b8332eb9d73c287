"""Programs in the csl dialect, run on NumPy PE by PE, compute what the kernels compute."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tvm import te, tirx

pytest.importorskip("xdsl", reason="xDSL is not installed: pip install 'tvm-ext[csl]'")

from csl_kernels import (
    broadcast_sum,
    elementwise,
    machine,
    matmul,
    on_cpu,
    over_mesh,
    product,
)
from csl_machine import CslMachine
from thoroughness import DRAWS

from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.wafer.matmul import ON_LEFT, ON_RIGHT, ON_SUMMED
from tvm_ext.wafer.csl import kernel_code
from tvm_ext.wafer.csl.kernel import PeKernel


def number(value, dtype="float32"):
    return tirx.const(value, dtype)


def random(shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# Name, function, result by NumPy, dtypes, and an instruction or operation of the text.
ELEMENTWISE = [
    ("add", lambda a, b: a + b, lambda a, b: a + b, ("float32",) * 2, "@fadds(y_dsd"),
    ("half", lambda a, b: a * b - a, lambda a, b: a * b - a, ("float16",) * 2, "@fsubh(y_dsd"),
    ("scale", lambda a, b: a * 2.0 + b, lambda a, b: a * 2 + b, ("float32",) * 2, "@fmacs(y_dsd"),
    (
        "three",
        lambda a, b, c: a * b + c * c - 1.0,
        lambda a, b, c: a * b + c * c - 1,
        ("float32",) * 3,
        "spare1_f32",
    ),
    (
        "clip",
        lambda a: te.max(te.min(a, number(0.5)), number(-0.5)),
        lambda a: np.clip(a, -0.5, 0.5),
        ("float32",),
        "@fnegs(",
    ),
    ("abs", te.abs, np.abs, ("float32",), "@fabss(y_dsd"),
    ("quarter", lambda a: a / 4.0, lambda a: a / 4, ("float32",), ", 0.25);"),
    ("third", lambda a: a / 3.0, lambda a: a / np.float32(3), ("float32",), "/ 3.0)"),
    (
        "widen",
        lambda a, b: a.astype("float32") * b,
        lambda a, b: a.astype("float32") * b,
        ("float16", "float32"),
        "@fh2s(",
    ),
    (
        "narrow",
        lambda a: (a * 3.0).astype("float16"),
        lambda a: (a * np.float32(3)).astype("float16"),
        ("float32",),
        "@fs2h(y_dsd",
    ),
    ("constant", lambda a: number(1.5) + a * 0.0, lambda a: a * 0 + 1.5, ("float32",), "1.5"),
    ("sigmoid", te.sigmoid, lambda a: 1 / (1 + np.exp(-a)), ("float32",), "math.exp_f32("),
    (
        "functions",
        lambda a: te.tanh(a) + te.sqrt(te.abs(a)) + te.floor(a) - te.max(te.exp(a), number(1)),
        lambda a: np.tanh(a) + np.sqrt(np.abs(a)) + np.floor(a) - np.maximum(np.exp(a), 1),
        ("float32",),
        "math.max_f32(",
    ),
    (
        "leaky",
        lambda a: tirx.Select(a > number(0), te.exp(a), a * 0.1),
        lambda a: np.where(a > 0, np.exp(a), a * np.float32(0.1)),
        ("float32",),
        "if (",
    ),
    (
        "narrow scalar",
        lambda a: te.exp(a).astype("float16"),
        lambda a: np.exp(a).astype("float16"),
        ("float32",),
        "@as(f16, ",
    ),
]


@pytest.mark.extended
@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda case: case[0])
def test_elementwise_work_without_messages(case):
    name, function, reference, dtypes, expected = case
    code = kernel_code(over_mesh(elementwise(function, dtypes=dtypes)), machine(), name)
    assert set(code.files) == {"pe_program.csl", "layout.csl"}
    assert expected in code.files["pe_program.csl"]
    inputs = [random((10, 14), dtype, seed) for seed, dtype in enumerate(dtypes)]
    runs = CslMachine(code)
    found = runs(**{f"x{n}": array for n, array in enumerate(inputs)})["y"]
    assert runs.grid == (4, 3)
    tolerance = 2e-3 if "float16" in (*dtypes, str(found.dtype)) else 1e-6
    np.testing.assert_allclose(found, reference(*inputs), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@settings(max_examples=10 * DRAWS, deadline=None)
# The last step is empty, and TVM writes the end of the sum as a number of steps.
@example((2, 3, 4), (1, 3), False, ON_RIGHT, "float32", 0)
# Fewer steps than PEs, and as many as elements of the sum.
@example((2, 3, 2), (1, 3), True, ON_LEFT, "float16", 0)
@given(
    sizes=st.tuples(*[st.integers(2, 13)] * 3),
    grid=st.tuples(*[st.integers(1, 4)] * 2),
    overlapped=st.booleans(),
    vector=st.sampled_from([ON_RIGHT, ON_LEFT, ON_SUMMED]),
    dtype=st.sampled_from(["float32", "float16"]),
    seed=st.integers(0, 99),
)
def test_summa_is_the_product(sizes, grid, overlapped, vector, dtype, seed):
    """On any grid, in any order in which tasks run and messages arrive, twice in a row."""
    m, n, k = sizes
    scheduled = matmul(
        product(m, n, k, dtype),
        rows=grid[0],
        columns=grid[1],
        overlapped=int(overlapped),
        vector=vector,
    )
    code = kernel_code(scheduled, machine())
    a, b = random((m, k), dtype, seed), random((k, n), dtype, seed + 1)
    runs = CslMachine(code, seed)
    tolerance = 5e-2 if dtype == "float16" else 1e-5
    expected = np.maximum(a.astype("float32") @ b.astype("float32"), 0)
    for _ in range(2):
        found = runs(A=a, B=b)["D"]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.extended
def test_every_step_sends_two_tiles():
    code = kernel_code(matmul(product(20, 18, 14), rows=4, columns=3, overlapped=1), machine())
    runs = CslMachine(code)
    runs(A=random((20, 14)), B=random((14, 18)))
    # Four steps; in each a message along each of four rows and three columns.
    assert runs.messages == 4 * (4 + 3)
    assert "A_local_odd" in code.files["pe_program.csl"]
    # A 5x8, B 4x6, D and C_local 5x6, and twice the tiles of a step: 5x4 and 4x6.
    assert code.bytes_per_pe == 4 * (40 + 24 + 30 + 30 + 2 * (20 + 24))


def test_a_constant_operand_may_stay_where_it_is():
    """Each PE has its columns of all of B, and only A is sent."""
    func = product(7, 18, 14).with_attr(CONSTANTS_ATTRIBUTE, [1])
    code = kernel_code(matmul(func, rows=3, columns=3, resident=1, overlapped=1), machine())
    assert code.shards[1].shape == (15, 6)
    a, b = random((7, 14)), random((14, 18), seed=1)
    runs = CslMachine(code)
    found = runs(A=a, B=b)["D"]
    np.testing.assert_allclose(found, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)
    assert runs.messages == 3 * 3
    assert "mpi_y" not in code.files["pe_program.csl"]


def test_messages_into_arrays_that_are_read_are_noticed(monkeypatch):
    """The check can fail: with one array instead of two, PEs read what is still under way."""
    scheduled = matmul(product(12, 12, 12), rows=3, columns=3, overlapped=1)
    monkeypatch.setattr(PeKernel, "alternates", lambda self, steps: False)
    a, b = random((12, 12)), random((12, 12), seed=1)
    found = CslMachine(kernel_code(scheduled, machine()))(A=a, B=b)["D"]
    assert np.abs(found - np.maximum(a @ b, 0)).max() > 0.1 or np.isnan(found).any()


@pytest.mark.parametrize(
    ("shapes", "messages", "holders"),
    [
        (((10, 14), (14,)), 4, (0, None)),
        (((10, 14), (10, 1)), 3, (None, 0)),
        (((10, 14), (1, 1)), 3 + 4, (0, 0)),
        (((10, 14), (14,), (10, 1), (1, 1)), 4 + 3 + 7, (0, None)),
    ],
)
def test_operands_that_are_sent_before_the_work(shapes, messages, holders):
    code = kernel_code(broadcast_sum(shapes), machine())
    inputs = [random(shape, seed=seed) for seed, shape in enumerate(shapes)]
    runs = CslMachine(code, seed=3)
    found = runs(**{f"x{n}": array for n, array in enumerate(inputs)})["y"]
    np.testing.assert_allclose(found, sum(inputs[1:], inputs[0]), rtol=1e-6)
    assert runs.messages == messages
    assert (code.shards[1].row, code.shards[1].column) == holders


@pytest.mark.extended
def test_vectors_go_along_memory_whatever_the_loop():
    """The dimension of the vectors is the innermost one in memory: a column has no stride."""
    left = matmul(product(12, 60, 12), rows=2, columns=2, vector=ON_LEFT)
    code = kernel_code(left, machine())
    orders = {shard.name: shard.order for shard in code.shards}
    assert orders["A"] == (1, 0)
    assert orders["D"] == (0, 1)
    a, b = random((12, 12)), random((12, 60), seed=1)
    found = CslMachine(code)(A=a, B=b)["D"]
    np.testing.assert_allclose(found, np.maximum(a @ b, 0), rtol=1e-5, atol=1e-5)


def test_work_of_several_blocks_on_rows():
    """Softmax as the templates schedule it: maximum, sum and quotient, element by element."""
    x = te.placeholder((6, 8), "float32", "x")
    over = [te.reduce_axis((0, 8), name=f"k{n}") for n in range(2)]
    top = te.compute((6,), lambda i: te.max(x[i, over[0]], axis=over[0]), name="top")
    power = te.compute((6, 8), lambda i, j: te.exp(x[i, j] - top[i]), name="power")
    total = te.compute((6,), lambda i: te.sum(power[i, over[1]], axis=over[1]), name="total")
    func = te.create_prim_func(
        [x, te.compute((6, 8), lambda i, j: power[i, j] / total[i], name="y")]
    )
    code = kernel_code(schedule_kernel(func, machine(3, 1))[0], machine(3, 1))
    array = random((6, 8))
    expected = on_cpu(func, [array, np.zeros((6, 8), "float32")])
    found = CslMachine(code)(x=array)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
