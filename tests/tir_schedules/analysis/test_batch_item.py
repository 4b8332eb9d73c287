"""The kernel of one item of a batch: what it looks like, and where there is none."""

import pytest
from lowering import f32, kernel_of
from tvm import relax, te, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.batch_item import BatchPart, batch_item
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent

op = relax.op
N = tirx.Var("n", "int64")
M = tirx.Var("m", "int64")


def batch(*shape: object) -> tuple[tuple[object, ...], str]:
    return shape, "float32"


def computed(function, *shapes: tuple[object, ...]) -> tirx.PrimFunc:
    """A kernel with one result, as a tensor expression of its inputs."""
    inputs = [te.placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]
    return te.create_prim_func([*inputs, function(*inputs)])


def shapes_of(func: tirx.PrimFunc) -> list[list[int | None]]:
    return [[static_extent(n) for n in param.shape] for param in func.params]


def test_sizes_of_an_item_are_numbers() -> None:
    func = kernel_of(lambda x, w: nn.relu(op.matmul(x, w)), batch(N, 7, 16), f32(16, 8))
    item = batch_item(func)
    assert item.size.same_as(func.params[0].shape[0])
    assert shapes_of(item.func) == [[1, 7, 16], [16, 8], [1, 7, 8]]
    assert item.parts == (BatchPart(0, 1), None, BatchPart(0, 1))
    loops = nodes(item.func.body, tirx.For)
    assert all(static_extent(loop.extent) is not None for loop in loops)


def test_several_rows_of_an_item() -> None:
    """Windows of an image: four rows of the first dimension belong to each image."""
    func = kernel_of(lambda x: op.nn.softmax(x, axis=-1), batch(N * 4, 5, 6))
    item = batch_item(func)
    assert shapes_of(item.func) == [[4, 5, 6]] * 2
    assert item.parts == (BatchPart(0, 4),) * 2


def test_rows_and_items_in_one_dimension() -> None:
    func = computed(
        lambda x: te.compute((N * 6, 3), lambda i, j: x[i // 6, i % 6 // 3, j + i % 3]), (N, 2, 5)
    )
    assert batch_item(func).parts == (BatchPart(0, 1), BatchPart(0, 6))


def test_batch_behind_dimensions_of_one() -> None:
    func = computed(lambda x: te.compute((1, N, 3), lambda o, i, j: x[i, j] + 1.0), (N, 3))
    assert batch_item(func).parts == (BatchPart(0, 1), BatchPart(1, 1))


def test_batch_inside_of_an_array_of_the_kernel_s_own() -> None:
    def twice(x: te.Tensor) -> te.Tensor:
        turned = te.compute((3, N), lambda j, i: x[i, j] * 2.0)
        return te.compute((N, 3), lambda i, j: turned[j, i] + 1.0)

    item = batch_item(computed(twice, (N, 3)))
    assert [static_extent(n) for n in item.func.body.block.alloc_buffers[0].shape] == [3, 1]


def test_bounds_of_the_batch_are_no_condition() -> None:
    func = computed(
        lambda x: te.compute(
            (N, 4), lambda i, j: tirx.if_then_else(tirx.all(i < N, j < 3), x[i, j], 0.0)
        ),
        (N, 4),
    )
    assert batch_item(func).parts == (BatchPart(0, 1),) * 2


def test_size_as_a_parameter() -> None:
    """TVM passes a size that no tensor has as it is."""
    func = computed(lambda x: te.compute((N * 4, 8), lambda i, j: x[i, j] * 2.0), (N * 4, 8))
    source, result = func.params
    func = tirx.PrimFunc([source, N, result], func.body, None, func.attrs)
    item = batch_item(func)
    assert shapes_of(item.func) == [[4, 8]] * 2


def _sum_of_items(x: te.Tensor) -> te.Tensor:
    i = te.reduce_axis((0, N), "i")
    return te.compute((4,), lambda j: te.sum(x[i, j], axis=i))


REFUSED = {
    "known": (lambda x: te.compute((2, 4), lambda i, j: x[i, j] * 2.0), (2, 4)),
    "two sizes": (lambda x: te.compute((N, M), lambda i, j: x[i, j] * 2.0), (N, M)),
    "inner": (lambda x: te.compute((4, N), lambda j, i: x[j, i] * 2.0), (4, N)),
    "sum": (_sum_of_items, (N, 4)),
    "next": (lambda x: te.compute((N, 4), lambda i, j: x[(i + 1) % N, j]), (N, 4)),
    "first": (lambda x: te.compute((N, 4), lambda i, j: x[i, j] - x[0, j]), (N, 4)),
    "reversed": (lambda x: te.compute((N, 4), lambda i, j: x[N - 1 - i, j]), (N, 4)),
    "number": (
        lambda x: te.compute((N, 4), lambda i, j: x[i, j] * i.astype("float32")),
        (N, 4),
    ),
    "count": (lambda x: te.compute((N, 4), lambda i, j: x[i, j] / N.astype("float32")), (N, 4)),
    "mixed rows": (lambda x: te.compute((N * 2, 4), lambda i, j: x[i % N, j]), (N, 4)),
    "no multiple": (lambda x: te.compute((N + 1, 4), lambda i, j: x[i, j]), (N + 1, 4)),
    "square": (lambda x: te.compute((N * N, 4), lambda i, j: x[i, j]), (N * N, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_batch(name: str) -> None:
    function, shape = REFUSED[name]
    with pytest.raises(NotApplicable):
        batch_item(computed(function, shape))
