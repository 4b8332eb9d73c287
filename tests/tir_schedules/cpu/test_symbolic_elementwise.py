"""Elementwise kernels and transposes of symbolic sizes, at sizes around vectors and tiles."""

import numpy as np
import pytest
import tvm
from lowering import f32, kernel_of, loops_of
from symbolic_extents import built, call, close, random, size
from thoroughness import one_in, some_of
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.cpu.elementwise import CpuElementwise

op = relax.op
SIZES = (0, 1, 3, 15, 16, 17, 63, 64, 65, 131)


def scheduled(func: tirx.PrimFunc, cores: int = 2) -> tirx.PrimFunc:
    found = apply_template(CpuElementwise(), func, host_description().with_cores(cores))
    assert isinstance(found, ScheduledKernel), found
    return found.func


def gelu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-1.5 * x))


def emit_gelu(x: relax.Expr) -> relax.Expr:
    return op.multiply(x, op.sigmoid(op.multiply(x, relax.const(1.5, "float32"))))


CHANNELS = [5, 16, 24, 70, 1]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("channels", "cores"),
    one_in(2, [*((n, 2) for n in CHANNELS), *((n, 1) for n in some_of(CHANNELS))]),
)
def test_transposes_to_symbolic_and_to_known_columns(channels: int, cores: int) -> None:
    n = size("n")
    shape = ((size("batch"), n, channels), "float32")
    func = kernel_of(lambda x: emit_gelu(op.permute_dims(x, [0, 2, 1])), shape)
    back = ((size("batch"), channels, n), "float32")
    other = kernel_of(lambda x: emit_gelu(op.permute_dims(x, [0, 2, 1])), back)
    for kernel, first in ((func, 1), (other, 2)):
        found = apply_template(CpuElementwise(), kernel, host_description().with_cores(cores))
        if isinstance(found, NotApplicable):
            # Of few channels no tile is worth while: the kernel is left to the last template.
            assert channels < 4
            continue
        function = built(found.func)
        for length in SIZES:
            sides = (3, length, channels) if first == 1 else (3, channels, length)
            x = random(*sides)
            wanted = gelu(x.transpose(0, 2, 1))
            close(call(function, [x], wanted.shape), wanted)


def test_heads_of_symbolic_sequences_change_places() -> None:
    shape = ((size("batch"), size("n"), 3, 20), "float32")
    function = built(scheduled(kernel_of(lambda x: op.permute_dims(x, [0, 2, 1, 3]), shape)))
    for length in SIZES:
        x = random(2, length, 3, 20)
        np.testing.assert_array_equal(call(function, [x], (2, 3, length, 20)), x.swapaxes(1, 2))


@pytest.mark.extended
@pytest.mark.parametrize("cores", [1, 2])
def test_elements_of_all_dimensions_are_one_loop(cores: int) -> None:
    shape = ((size("batch"), 3, size("height"), size("width")), "float32")
    func = scheduled(kernel_of(lambda x, y: nn.relu(op.add(x, y)), shape, shape), cores)
    vectors = [loop for loop in loops_of(func) if loop.kind == "vectorized"]
    assert [len(loop.path) for loop in vectors] == [1]
    function = built(func)
    for width in SIZES:
        x, y = random(2, 3, 2, width), random(2, 3, 2, width) * 2
        np.testing.assert_array_equal(call(function, [x, y], x.shape), np.maximum(x + y, 0))


@pytest.mark.extended
@pytest.mark.parametrize("columns", [1, 7, 16, 40])
def test_a_bias_of_known_columns_under_symbolic_rows(columns: int) -> None:
    shape = ((size("batch"), size("rows"), columns), "float32")
    func = scheduled(kernel_of(lambda x, y: op.add(emit_gelu(x), y), shape, f32(columns)))
    function, bias = built(func), random(columns)
    for rows in SIZES:
        x = random(2, rows, columns)
        close(call(function, [x, bias], x.shape), gelu(x) + bias)


def test_a_bias_of_symbolic_columns() -> None:
    shape, bias = ((size("batch"), size("n")), "float32"), ((size("n"),), "float32")
    function = built(scheduled(kernel_of(lambda x, y: op.add(x, y), shape, bias)))
    for columns in SIZES:
        x, y = random(5, columns), random(columns)
        np.testing.assert_array_equal(call(function, [x, y], x.shape), x + y)


def test_steps_that_are_not_one_are_plain_loops() -> None:
    shape = ((size("batch"), size("n"), size("m")), "float32")
    func = kernel_of(lambda x: op.strided_slice(x, [2], [0], [2**31], [3]), shape)
    function = built(scheduled(func))
    for columns in SIZES[1:]:
        x = random(2, 3, columns)
        np.testing.assert_array_equal(call(function, [x], x[..., ::3].shape), x[..., ::3])


def test_a_branch_is_left_to_others() -> None:
    rows, columns = size("rows"), size("columns")
    x = te.placeholder((rows, columns), "float32", "x")
    zero = tirx.const(0.0, "float32")

    def padded(row: tirx.Var, i: tirx.Var) -> tirx.Expr:
        return tirx.if_then_else(i < 1, zero, x[row, i - 1])

    func = te.create_prim_func([x, te.compute((rows, columns + 1), padded)])
    assert isinstance(apply_template(CpuElementwise(), func, host_description()), NotApplicable)


def halfway(x: te.Tensor) -> te.Tensor:
    """Twice as many rows and columns, each of the elements between which it lies."""

    def nearest(place: tirx.Var, extent: tirx.Expr) -> tirx.Expr:
        point = tirx.floor(place.astype("float32") * 0.5 + 0.25).astype("int64")
        return tirx.max(tirx.min(point, extent - 1), 0)

    images, rows, columns = x.shape

    def value(image: tirx.Var, row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        weight = tirx.sqrt(column.astype("float32"))
        return x[image, nearest(row, rows), nearest(column, columns)] * weight

    return te.compute((images, rows * 2, columns * 2), value, name="halfway")


@pytest.mark.extended
@pytest.mark.parametrize("cores", [1, 2])
def test_what_one_loop_decides_is_worked_out_once(cores: int) -> None:
    x = te.placeholder((size("batch"), size("rows"), size("columns")), "float32", "x")
    func = scheduled(te.create_prim_func([x, halfway(x)]), cores)
    tables = [str(alloc.buffer.dtype) for alloc in nodes(func.body, tirx.AllocBuffer)]
    # A row's place, a column's, and a column's weight.
    assert sorted(tables) == ["float32", "int32", "int32"]
    (branch,) = nodes(func.body, tirx.IfThenElse)
    main = branch.then_case.seq[-1]
    assert len(nodes(main, tirx.For)) == (3 if cores == 1 else 2)
    assert all(loop.kind != tirx.ForKind.VECTORIZED for loop in nodes(main, tirx.For))
    (store,) = nodes(main, tirx.BufferStore)
    assert not nodes(store.value, tvm.ir.Call)
    function = built(func)
    for rows in (1, 2, 5):
        for columns in SIZES[1:]:
            images = random(3, rows, columns)
            wanted = images.repeat(2, 1).repeat(2, 2) * np.sqrt(np.arange(2 * columns))
            close(call(function, [images], wanted.shape), wanted)
    assert not call(function, [random(3, 0, 4)], (3, 0, 8)).size


def test_a_number_that_is_no_place_keeps_its_width() -> None:
    """A table of places has int32; a column's number beyond that is multiplied here."""
    rows, columns = size("rows"), size("columns")
    x = te.placeholder((rows, columns), "float32", "x")

    def value(row: tirx.Var, i: tirx.Var) -> tirx.Expr:
        large = tirx.floormod(i * 2**33, tirx.const(2**40, "int64"))
        return x[row, columns - 1 - tirx.floormod(i * 3, columns)] * large.astype("float32")

    function = built(scheduled(te.create_prim_func([x, te.compute(x.shape, value)])))
    for count in SIZES[1:]:
        data, i = random(3, count), np.arange(count)
        close(
            call(function, [data], data.shape),
            data[:, count - 1 - i * 3 % count] * (i % 128 * 2.0**33),
        )


def test_what_only_some_iterations_compute_is_in_no_table() -> None:
    """For the first column it would be a division by zero."""
    rows, columns = size("rows"), size("columns")
    x = te.placeholder((rows, columns), "float32", "x")

    def value(row: tirx.Var, i: tirx.Var) -> tirx.Expr:
        reciprocal = x[row, tirx.truncdiv(columns - 1, i)]
        return tirx.Select(i > 0, reciprocal, x[row, tirx.truncmod(i * 3, columns)])

    func = scheduled(te.create_prim_func([x, te.compute(x.shape, value)]))
    assert not nodes(func.body, tirx.AllocBuffer)
    function = built(func)
    for count in SIZES[1:]:
        data = random(3, count)
        places = [(count - 1) // i if i else 0 for i in range(count)]
        np.testing.assert_array_equal(call(function, [data], data.shape), data[:, places])


def test_a_table_of_places_is_worked_out_once_and_read_in_vectors() -> None:
    """Resize: the row is read where a table says, which calls a function for each place."""

    x = te.placeholder((size("rows"), size("columns")), "float32", "x")
    places = te.compute(
        (size("columns"),),
        lambda i: tirx.floor(i.astype("float64") / tirx.const(2.0, "float64")).astype("int32"),
        name="places",
    )
    spread = te.compute(x.shape, lambda r, i: x[r, places[i]] * 2.0, name="spread")
    func = te.create_prim_func([x, spread])
    function = built(scheduled(func))
    for columns in SIZES[1:]:
        rows = random(3, columns)
        wanted = rows[:, np.arange(columns) // 2] * 2
        np.testing.assert_array_equal(call(function, [rows], rows.shape), wanted)


@pytest.mark.extended
@pytest.mark.parametrize("counts", [(20, 13), (64, 1, 32), (3, 5), (16, 16)])
@pytest.mark.parametrize("axis", [1, 3])
def test_joined_channels_are_rows_in_pieces(counts: tuple[int, ...], axis: int) -> None:
    def shape(count: int) -> tuple:
        sides = [size("batch"), size("height"), size("width")]
        return ((*sides[:axis], count, *sides[axis:]), "float32")

    func = scheduled(
        kernel_of(lambda *v: nn.relu(op.concat(list(v), axis)), *map(shape, counts)), cores=2
    )
    assert "if_then_else" not in func.script()
    function = built(func)
    for sides in ((1, 1, 1), (2, 3, 17), (1, 5, 64)):
        arrays = [random(*sides[:axis], count, *sides[axis:]) for count in counts]
        wanted = np.maximum(np.concatenate(arrays, axis), 0)
        np.testing.assert_array_equal(call(function, arrays, wanted.shape), wanted)


def test_joined_lengths_run_in_vectors() -> None:
    """A cache and what is new: which of them a row is from holds for all of the row."""
    past, new = (((2, size(name), 24), "float32") for name in ("past", "rows"))
    func = scheduled(kernel_of(lambda x, y: op.concat([x, y], 1), past, new))
    assert "vectorized" in {loop.kind for loop in loops_of(func)}
    function = built(func)
    for length in (0, 1, 9):
        x, y = random(2, length, 24), random(2, 3, 24)
        wanted = np.concatenate([x, y], 1)
        np.testing.assert_array_equal(call(function, [x, y], wanted.shape), wanted)
