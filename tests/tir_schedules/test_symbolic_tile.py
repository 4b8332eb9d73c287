"""Sums of products with open extents, at sizes around those of a tile, against NumPy."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
import tvm
import tvm_ffi
from guarded import guarded
from kernel_cases import nhwc
from lowering import f32, kernel_of, loops_of, statements
from machines import GPU, MACHINE, NARROW
from tvm import relax, te, tirx
from tvm.relax.op import nn
from tvm.sym import Analyzer
from unoptimised import HOST

from tvm_ext.hardware.host import host_description
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.relay_passes.name_symbolic_sizes import NameSymbolicSizes
from tvm_ext.tir_schedules.apply_template import ScheduledKernel, apply_template
from tvm_ext.tir_schedules.block_access import CONSTANTS_ATTRIBUTE, static_extent
from tvm_ext.tir_schedules.llvm.blockwise import Blockwise
from tvm_ext.tir_schedules.llvm.symbolic_tile import SymbolicTiles
from tvm_ext.tir_schedules.nest import substitute
from tvm_ext.tir_schedules.select import schedule_kernel
from tvm_ext.tir_schedules.template import NotMine

op = relax.op

# Around tiles of 8 rows, and of 16 columns.
SIZES = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 26, 50)


@cache
def size(name: str) -> tirx.Var:
    return tirx.Var(name, "int64")


def scheduled(func: tirx.PrimFunc, machine=None) -> ScheduledKernel:
    found = apply_template(SymbolicTiles(), func, machine or host_description())
    assert isinstance(found, ScheduledKernel), found
    return found


def built(func: tirx.PrimFunc) -> Callable[..., None]:
    module = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tirx.build(module, target=HOST.tvm_target())["main"]


def call(
    function: Callable[..., None], inputs: Sequence[np.ndarray], shape: Sequence[int], *numbers: int
) -> np.ndarray:
    """The result, with all arrays at the end of what may be touched, and again at its start."""
    results = []
    for at_end in (True, False):
        with ExitStack() as stack:
            arrays = [stack.enter_context(guarded(array, at_end)) for array in inputs]
            nothing = np.full(shape, np.nan, "float32")
            result = stack.enter_context(guarded(nothing, at_end))
            arguments = [*arrays[: len(inputs)], *numbers, result]
            function(*(as_tensor(value) for value in arguments))
            results.append(result.copy())
    np.testing.assert_array_equal(results[0], results[1])
    return results[0]


def as_tensor(value: np.ndarray | int) -> object:
    """An array where it is; an empty one is copied: TVM expects other strides of it than NumPy."""
    if isinstance(value, int):
        return value
    return tvm_ffi.from_dlpack(value) if value.size else tvm.runtime.tensor(value)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def matmul_bias_relu(columns: int) -> tirx.PrimFunc:
    func = kernel_of(
        lambda x, w, b: nn.relu(op.add(op.matmul(x, w), b)),
        ((size("batch"), size("rows"), 13), "float32"),
        f32(13, columns),
        f32(columns),
    )
    return func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])


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


def test_batched_matmul_with_open_columns() -> None:
    """Attention's scores: both sides of the result are open, and the epilogue reads a mask."""
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


def test_batched_matmul_with_an_open_sum() -> None:
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


def convolution(x: np.ndarray, w: np.ndarray, stride: int, pad: int) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[:2], axis=(1, 2))
    return np.einsum("nyxcij,ijcf->nyxf", windows[:, ::stride, ::stride], w, optimize=True)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("stride", "kernel", "pad"), [(1, 3, 1), (2, 3, 1), (1, 1, 0), (2, 1, 0)])
def test_convolution(stride: int, kernel: int, pad: int, named: bool) -> None:
    func = kernel_of(
        lambda *v: nhwc(*v, strides=(stride, stride), padding=(pad, pad)),
        ((size("batch"), size("height"), size("width"), 3), "float32"),
        f32(kernel, kernel, 3, 24),
        f32(24),
    )
    if named:
        func = NameSymbolicSizes()(tvm.IRModule({"main": func}))["main"]
    func = func.with_attr(CONSTANTS_ATTRIBUTE, [1, 2])
    found = scheduled(func)
    function = built(found.func)
    weights, bias = random(kernel, kernel, 3, 24), random(24)
    own = found.packed.pack(weights) if found.packed is not None else weights
    for batch, height in ((1, 1), (2, 5), (1, 9)):
        for width in SIZES[1:]:
            x = random(batch, height, width, 3)
            wanted = np.maximum(convolution(x, weights, stride, pad) + bias, 0)
            close(call(function, [x, own, bias], wanted.shape), wanted)
        empty = random(batch, height, 0, 3)
        shape = (batch, -(-height // stride), 0, 24)
        assert call(function, [empty, own, bias], shape).size == 0


@pytest.mark.parametrize("kernel", [1, 3])
def test_convolution_with_channels_first(kernel: int) -> None:
    """Columns are pixels, of a width that is a multiple of four: some branches are never taken."""
    width = size("width") * 4
    func = kernel_of(
        lambda x, w: nn.relu(nn.conv2d(x, w, padding=(kernel // 2, kernel // 2))),
        ((size("batch"), 5, size("height"), width), "float32"),
        f32(19, 5, kernel, kernel),
    )
    function = built(scheduled(func).func)
    weights = random(19, 5, kernel, kernel)
    turned = weights.transpose(2, 3, 1, 0)
    for height, width in ((1, 4), (3, 8), (2, 16), (9, 20), (5, 0)):
        x = random(2, 5, height, width)
        shape = (2, 19, height, width)
        numbers = [number for name, number in (("width", width // 4),) if _takes(func, name)]
        found = call(function, [x, weights], shape, *numbers)
        if width:
            wanted = convolution(x.transpose(0, 2, 3, 1), turned, 1, kernel // 2)
            close(found, np.maximum(wanted, 0).transpose(0, 3, 1, 2))


def _takes(func: tirx.PrimFunc, name: str) -> bool:
    return any(param.name == name for param in func.params)


def test_crop_of_padded_channels() -> None:
    """Channels that are only there to fill vectors are not computed."""
    func = kernel_of(
        lambda x, w: op.strided_slice(op.matmul(x, w), axes=[1], begin=[0], end=[28]),
        ((size("rows"), 6), "float32"),
        f32(6, 32),
    )
    function = built(scheduled(func).func)
    weights = random(6, 32)
    for rows in SIZES:
        x = random(rows, 6)
        close(call(function, [x, weights], (rows, 28)), (x @ weights)[:, :28])


def _line(*shape: object) -> tuple[tuple[object, ...], str]:
    return (size("batch"), *shape), "float32"


OTHERS = {
    "depthwise": (
        lambda x, w: nn.conv2d(
            x, w, padding=(2, 2), groups=19, data_layout="NHWC", kernel_layout="HWOI"
        ),
        (_line(size("rows"), size("columns"), 19), f32(5, 5, 19, 1)),
    ),
    "dilated": (
        lambda x, w: nn.conv2d(
            x, w, padding=(2, 2), dilation=(2, 2), data_layout="NHWC", kernel_layout="HWIO"
        ),
        (_line(size("rows"), size("columns"), 3), f32(3, 3, 3, 20)),
    ),
    "one axis": (
        lambda x, w: nn.conv1d(
            x, w, padding=(1, 1), strides=2, data_layout="NWC", kernel_layout="WIO"
        ),
        (_line(size("columns"), 6), f32(3, 6, 40)),
    ),
    "one axis, channels first": (
        lambda x, w: nn.conv1d(x, w, padding=(3, 3)),
        (_line(6, size("columns")), f32(10, 6, 7)),
    ),
    "few rows": (
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        (_line(5, 11, 3), f32(3, 3, 3, 16)),
    ),
    "only images": (
        lambda x, w: nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        (_line(3, 3, 5), f32(3, 3, 5, 48)),
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_convolutions(name: str) -> None:
    """Against the last resort, one image and three."""
    expression, inputs = OTHERS[name]
    func = kernel_of(expression, *inputs)
    plain = apply_template(Blockwise(), func, host_description())
    assert isinstance(plain, ScheduledKernel)
    own, last = built(scheduled(func).func), built(plain.func)
    for batch in (1, 3):
        for columns in SIZES[1:]:
            numbers = {"batch": batch, "rows": 5, "columns": columns}
            arrays = [random(*_known(shape, numbers)) for shape, _ in inputs]
            shape = _known(func.params[-1].shape, numbers)
            close(call(own, arrays, shape), call(last, arrays, shape))


def _known(shape: Sequence[object], numbers: dict[str, int]) -> list[int]:
    """A shape with numbers in place of the sizes of those names."""

    def known(extent: object) -> int:
        if isinstance(extent, int):
            return extent
        names = tirx.analysis.undefined_vars(extent)
        values = {v: tirx.const(numbers[v.name], "int64") for v in names}
        return int(Analyzer().simplify(substitute(extent, values)))

    return [known(extent) for extent in shape]


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


def sums_of(func: tirx.PrimFunc) -> list[int]:
    """Elements of each tile of sums."""
    found = [s.buffer for s in statements(func.body) if isinstance(s, tirx.AllocBuffer)]
    return [static_extent(array.shape[0]) for array in found if array.name == "sums"]


@pytest.mark.parametrize(
    ("machine", "columns", "tiles"),
    [
        (MACHINE, 64, [8 * 32, 32]),
        (MACHINE, 48, [8 * 16, 16]),
        (MACHINE, 6, [8 * 4, 4]),
        (NARROW, 64, [6 * 16, 16]),
    ],
)
def test_tiles_fit_into_registers(machine, columns: int, tiles: list[int]) -> None:
    before = matmul_bias_relu(columns)
    text = before.script()
    found = scheduled(before, machine).func
    assert before.script() == text
    assert sums_of(found) == tiles
    loops = loops_of(found)
    # Tiles on threads, then the reduction, the rows and their vectors.
    inner = [loop for loop in loops if loop.path == ("parallel", "serial", "unrolled")]
    assert [(loop.kind, loop.extent) for loop in inner] == [("vectorized", tiles[-1])]
    assert {loop.kind for loop in loops if not loop.path} == {"parallel"}
    # One way for rows in tiles, one for fewer rows than a tile has.
    assert len([loop for loop in loops if not loop.path]) == 2


def test_one_core_needs_no_threads() -> None:
    found = scheduled(matmul_bias_relu(64), MACHINE.with_cores(1)).func
    assert "parallel" not in {loop.kind for loop in loops_of(found)}


def test_sequences_of_a_batch_share_tiles() -> None:
    """The rows of all sequences are one loop where addresses allow it."""
    text = scheduled(matmul_bias_relu(64)).func.script()
    assert "batch * rows >= T.int64(8)" in text


def test_rows_of_a_convolution_with_a_border_are_those_of_one_line() -> None:
    func = kernel_of(
        lambda *v: nhwc(*v, padding=(1, 1)),
        ((size("batch"), size("height"), size("width"), 3), "float32"),
        f32(3, 3, 3, 32),
        f32(32),
    )
    text = scheduled(func).func.script()
    assert "if width >= T.int64(8)" in text
    # TVM's own estimate of what tiles read of the padded input is not used.
    assert "explicit_read_region" in text


@pytest.mark.parametrize("target", ["avx2", "avx512", "aarch64-neon", "x86-64"])
def test_builds_for_other_machines(target: str) -> None:
    machine = resolve_target(target)
    func = scheduled(matmul_bias_relu(48), machine).func.with_attr("global_symbol", "main")
    assert tirx.build(tvm.IRModule({"main": func}), target=machine.tvm_target()) is not None


ROWS = ((size("rows"), 32), "float32")
REFUSALS = {
    "the target is not a CPU": (GPU, lambda: matmul_bias_relu(64)),
    "the kernel has 0 reductions, not one": (MACHINE, lambda: kernel_of(op.exp, ROWS)),
    "the kernel has 2 reductions, not one": (MACHINE, lambda: kernel_of(nn.softmax, ROWS)),
    "all extents are known, or a loop has no iterations": (
        MACHINE,
        lambda: kernel_of(op.matmul, f32(3, 4), f32(4, 5)),
    ),
    "its reduction is no sum": (MACHINE, lambda: kernel_of(lambda x: op.max(x, axis=[0]), ROWS)),
    "it sums up something other than products": (
        MACHINE,
        lambda: kernel_of(lambda x: op.sum(x, axis=[0]), ROWS),
    ),
    "no loop walks the output and the operands without a stride": (
        MACHINE,
        lambda: kernel_of(op.matmul, ROWS, f32(32, 1)),
    ),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_refusals(reason: str) -> None:
    machine, func = REFUSALS[reason]
    assert apply_template(SymbolicTiles(), func(), machine) == NotMine(reason)


def test_is_asked_before_the_last_resort() -> None:
    _, choice = schedule_kernel(matmul_bias_relu(64), MACHINE)
    assert (choice.schedule, choice.source) == ("symbolic tile", "template")
    assert choice.packed is not None
