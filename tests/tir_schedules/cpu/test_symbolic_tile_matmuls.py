"""Contractions with symbolic extents, at sizes around those of a tile, against NumPy."""

import numpy as np
import pytest
import tvm
from lowering import kernel_of, statements
from symbolic_extents import SIZES, built, call, close, matmul_bias_relu, random, scheduled, size
from tvm import relax, te, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.cpu.symbolic_tile import SymbolicTiles

op = relax.op


@pytest.mark.parametrize("columns", [64, 48, 37, 6])
def test_matmul(columns: int) -> None:
    found = scheduled(matmul_bias_relu(columns))
    assert (found.packed is not None) == (columns in (64, 48))
    function = built(found.func)
    weights, bias = random(13, columns), random(columns)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for rows in SIZES:
        for batch in (0, 1, 3):
            x = random(batch, rows, 13)
            result = call(function, [x, own, bias], (batch, rows, columns))
            close(result, np.maximum(x @ weights + bias, 0))


@pytest.mark.parametrize(("items", "choices"), [(49, 0), (1, 4)])
def test_rows_that_are_always_as_many_have_no_smaller_tiles(items: int, choices: int) -> None:
    func = kernel_of(op.matmul, ((size("batch"), items, 40), "float32"), ((40, 64), "float32"))
    func = func.with_attr(CONSTANTS_ATTRIBUTE, [1])
    machine = host_description().with_cores(1).model_copy(update={"vector_bits": 256})
    found = scheduled(func, machine)
    sizes = [s for s in statements(found.func.body) if isinstance(s, tirx.IfThenElse)]
    assert len(sizes) == choices
    function = built(found.func)
    weights = random(40, 64)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for batch in (0, 1, 2, 5):
        x = random(batch, items, 40)
        close(call(function, [x, own], (batch, items, 64)), x @ weights)


def test_rows_beside_none_at_all() -> None:
    """Five rows behind those of a cache, which is empty at first: fewer than a tile of six has."""
    func = kernel_of(op.matmul, ((size("past") + 5, 40), "float32"), ((40, 64), "float32"))
    machine = host_description().with_cores(1).model_copy(update={"vector_bits": 256})
    function = built(scheduled(func, machine).func)
    weights = random(40, 64)
    for past in (0, 1, 2, 9):
        x = random(past + 5, 40)
        close(call(function, [x, weights], (past + 5, 64), past), x @ weights)


@pytest.mark.extended
def test_batched_matmul_with_symbolic_columns() -> None:
    """Attention's scores: both sides of the result are symbolic, and the epilogue reads a mask."""
    func = kernel_of(
        lambda q, k, m: op.add(op.divide(op.matmul(q, k), relax.const(2.0)), m),
        ((size("batch"), 2, size("rows"), 5), "float32"),
        ((size("batch"), 2, 5, size("columns")), "float32"),
        ((size("batch"), 1, 1, size("columns")), "float32"),
    )
    function = built(scheduled(func).func)
    for batch in (0, 1, 2):
        for rows in (0, 1, 7, 8, 9, 26):
            for columns in SIZES:
                q, k = random(batch, 2, rows, 5), random(batch, 2, 5, columns)
                mask = random(batch, 1, 1, columns)
                result = call(function, [q, k, mask], (batch, 2, rows, columns))
                close(result, q @ k / 2 + mask)


def test_batched_matmul_with_a_symbolic_sum() -> None:
    func = kernel_of(
        op.matmul,
        ((size("batch"), size("rows"), size("steps")), "float32"),
        ((size("batch"), size("steps"), 32), "float32"),
    )
    function = built(scheduled(func).func)
    for rows in SIZES:
        for steps in (0, 1, 2, 17):
            x, y = random(2, rows, steps), random(2, steps, 32)
            close(call(function, [x, y], (2, rows, 32)), x @ y)


def test_sum_over_an_open_batch_and_the_rows_of_each_item() -> None:
    """A gradient by weights, whose second operand L2 does not hold."""
    batch = size("batch")
    seven, wide, inputs = (tirx.const(n, "int64") for n in (7, 160, 13))
    left = te.placeholder((batch, seven, inputs), "float32")
    right = te.placeholder((batch, seven, wide), "float32")
    n, row = te.reduce_axis((0, batch)), te.reduce_axis((0, seven))
    func = te.create_prim_func(
        [
            left,
            right,
            te.compute(
                (inputs, wide), lambda i, o: te.sum(left[n, row, i] * right[n, row, o], [n, row])
            ),
        ]
    )
    machine = host_description().model_copy(update={"l2_bytes": 4096})
    function = built(scheduled(func, machine).func)
    for items in (0, 1, 2, 9):
        x, y = random(items, 7, 13), random(items, 7, 160)
        close(call(function, [x, y], (13, 160)), np.einsum("nri,nro->io", x, y))


@pytest.mark.parametrize("columns", ["open", "known"])
def test_matmul_with_the_transpose(columns: str) -> None:
    """The right side lies along the sum: it is read from a copy along the columns."""
    width = size("columns") if columns == "open" else tirx.const(24, "int64")
    batch, two, five = size("batch"), tirx.const(2, "int64"), tirx.const(5, "int64")
    left = te.placeholder((batch, two, size("rows"), five), "float32")
    right = te.placeholder((batch, two, width, five), "float32")
    depth = te.reduce_axis((0, five))
    product = te.compute(
        (batch, two, size("rows"), width),
        lambda i, j, y, x: te.sum(left[i, j, y, depth] * right[i, j, x, depth], depth),
    )
    halved = te.compute(product.shape, lambda *index: product[index] * 0.5)
    func = te.create_prim_func([left, right, halved])
    function = built(scheduled(func).func)
    for rows in (0, 1, 7, 8, 9, 26):
        for count in SIZES if columns == "open" else (24,):
            q, k = random(2, 2, rows, 5), random(2, 2, count, 5)
            result = call(function, [q, k], (2, 2, rows, count))
            close(result, q @ k.transpose(0, 1, 3, 2) / 2)


def test_vector_times_matrix() -> None:
    func = kernel_of(op.matmul, ((1, size("steps")), "float32"), ((size("steps"), 40), "float32"))
    function = built(scheduled(func).func)
    for steps in SIZES:
        x, y = random(1, steps), random(steps, 40)
        close(call(function, [x, y], (1, 40)), x @ y)


def test_sums_that_are_broadcast() -> None:
    """The sums stay an array where what follows does not read each of them once."""
    func = kernel_of(
        lambda x, w, y: op.add(op.matmul(x, w), y),
        ((1, size("steps")), "float32"),
        ((size("steps"), 40), "float32"),
        ((size("rows"), 40), "float32"),
    )
    function = built(scheduled(func).func)
    for steps in (0, 1, 5):
        for rows in SIZES:
            x, w, y = random(1, steps), random(steps, 40), random(rows, 40)
            close(call(function, [x, w, y], (rows, 40)), x @ w + y)


def product_of_rows() -> tuple[list[te.Tensor], te.Tensor]:
    """``(rows, 5)`` times ``(5, 32)``: what goes in, and the sums."""
    rows, five, columns = size("rows"), tirx.const(5, "int64"), tirx.const(32, "int64")
    x, w = te.placeholder((rows, five), "float32"), te.placeholder((five, columns), "float32")
    k = te.reduce_axis((0, five))
    return [x, w], te.compute((rows, columns), lambda i, j: te.sum(x[i, k] * w[k, j], k))


def run_on_rows(func: tirx.PrimFunc, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Two results of as many rows as the inputs have."""
    results = [np.zeros((len(inputs[0]), 32), "float32") for _ in range(2)]
    tensors = [tvm.runtime.tensor(value) for value in (*inputs, *results)]
    built(func)(*tensors)
    return [tensor.numpy() for tensor in tensors[-2:]]


def test_sums_that_are_a_result_themselves() -> None:
    inputs, sums = product_of_rows()
    doubled = te.compute(sums.shape, lambda *index: sums[index] * 2.0)
    func = scheduled(te.create_prim_func([*inputs, sums, doubled])).func
    x, w = random(9, 5), random(5, 32)
    found = run_on_rows(func, [x, w])
    close(found[0], x @ w)
    close(found[1], 2 * (x @ w))


def test_an_epilogue_that_reads_what_is_computed_between() -> None:
    inputs, sums = product_of_rows()
    y = te.placeholder(sums.shape, "float32")
    between = te.compute(sums.shape, lambda *index: y[index] * 3.0)
    added = te.compute(sums.shape, lambda *index: sums[index] + between[index])
    func = te.create_prim_func([*inputs, y, added, between])
    x, w, more = random(9, 5), random(5, 32), random(9, 32)
    found = run_on_rows(scheduled(func).func, [x, w, more])
    close(found[0], x @ w + 3 * more)
    close(found[1], 3 * more)


def phases(decides: str) -> tirx.PrimFunc:
    """``y[m, phase] = sum over taps of x[m + tap] @ w[phase, tap]``, where a phase has the tap."""
    m = size("rows")
    two, taps, steps, columns = (tirx.const(n, "int64") for n in (2, 3, 20, 32))
    x = te.placeholder((m + 2, steps), name="x")
    w = te.placeholder((two, taps, steps, columns), name="w")
    zero = tirx.const(0, "int64")
    tap, i = te.reduce_axis((zero, taps), name="tap"), te.reduce_axis((zero, steps), name="i")

    def element(row: tirx.Var, phase: tirx.Var, column: tirx.Var) -> tirx.Expr:
        product = x[row + tap, i] * w[phase, tap, i, column]
        decided = {"tap": tap.var, "row": row, "step": i.var}[decides]
        adds = tirx.all(phase <= decided, decided <= phase + 1)
        return te.sum(tirx.if_then_else(adds, product, tirx.const(0, "float32")), axis=[tap, i])

    func = te.create_prim_func([x, w, te.compute((m, two, columns), element, name="y")])
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1])


def test_iterations_that_add_nothing_are_left_out() -> None:
    found = scheduled(phases("tap"))
    # The weights of a phase serve the rows of a tile: no row has a phase of its own.
    assert "v_phase = T.alloc" not in found.func.script()
    weights = random(2, 3, 20, 32)
    own = found.packed.pack(weights)
    function = built(found.func)
    for rows in SIZES:
        x = random(rows + 2, 20)
        # Where a phase has no tap, no weight is multiplied.
        x[0] = np.nan if rows == 0 else x[0]
        wanted = np.stack(
            [sum(x[t : t + rows] @ weights[p, t] for t in (p, p + 1)) for p in (0, 1)], axis=1
        )
        close(call(function, [x, own], (rows, 2, 32)), wanted)


@pytest.mark.parametrize("decides", ["row", "step"])
def test_conditions_of_rows_and_of_the_innermost_sum_are_left_to_others(decides: str) -> None:
    with pytest.raises(NotApplicable, match="no matter of outer loops"):
        SymbolicTiles().apply(phases(decides), host_description())


def test_a_condition_of_the_only_iteration_is_left_to_others() -> None:
    m, one = size("rows"), tirx.const(1, "int64")
    x, w = te.placeholder((m, one), name="x"), te.placeholder((one, one * 32), name="w")
    i = te.reduce_axis((one * 0, one), name="i")

    def element(row: tirx.Var, phase: tirx.Var, column: tirx.Var) -> tirx.Expr:
        product = tirx.if_then_else(phase <= 0, x[row, i] * w[i, column], tirx.const(0, "float32"))
        return te.sum(product, axis=[i])

    y = te.compute((m, one * 2, one * 32), element, name="y")
    with pytest.raises(NotApplicable, match="no matter of outer loops"):
        SymbolicTiles().apply(te.create_prim_func([x, w, y]), host_description())
