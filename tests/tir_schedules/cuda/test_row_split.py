"""Few long rows that several blocks share: numbers, threads, launches, and when it is worth it."""

import pytest
from cuda_kernels import assert_numbers, cuda_source, scheduled
from emulated_kernels import assert_emulated
from kernel_cases import layer_norm
from lowering import f32, kernel_of
from machines import GPU
from matmul_kernels import product
from tvm import relax, s_tir, tirx
from tvm.relax.op import nn

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks
from tvm_ext.tir_schedules.analysis.row_reader import read_rows
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction, split_rows
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions

op = relax.op
TEMPLATE = RowReduction()

# The expression and its inputs, the parts of a row, and the launches that they take.
SPLIT: dict[str, tuple[tuple, int, int]] = {
    "sum": ((lambda x: op.sum(x), f32(9000)), 8, 2),
    "odd sum": ((lambda x: op.sum(x), f32(9973)), 8, 2),
    "rows": ((lambda x: op.max(x, axis=[1]), f32(3, 5200)), 4, 2),
    "mean": ((lambda x: op.mean(x, axis=[1]), f32(2, 8200)), 4, 2),
    "argmax": ((lambda x: op.argmax(x, 1), f32(2, 5001)), 4, 2),
    "variance": ((lambda x: op.variance(x, axis=[0, 2, 3]), f32(2, 3, 50, 40)), 2, 3),
    "softmax": ((lambda x: nn.softmax(x, 1), f32(2, 5000)), 4, 3),
    "odd log softmax": ((lambda x: nn.log_softmax(x, 1), f32(1, 4099)), 4, 3),
    "layer norm": (layer_norm(1, 4096), 4, 3),
    "group norm": (
        (lambda x, g, b: nn.group_norm(x, g, b, 2, 1, [2, 3]), f32(1, 4, 40, 50), f32(4), f32(4)),
        *(2, 2),
    ),
    "columns": ((lambda x: op.sum(x, axis=[0]), f32(5000, 8)), 4, 2),
    "softmax of columns": ((lambda x: nn.softmax(x, 0), f32(3001, 5)), 2, 3),
    "half": ((lambda x: op.max(x, axis=[1]), ((2, 8200), "float16")), 4, 2),
}


def in_parts(name: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    """The kernel as it is, and with its rows in parts."""
    (expression, *inputs), splits, _ = SPLIT[name]
    kernel = kernel_of(expression, *inputs)
    return kernel, scheduled(TEMPLATE, kernel, decisions=FixedDecisions({"splits": splits}))


def launches(func: tirx.PrimFunc) -> int:
    """Kernels in the CUDA code, each declared and defined."""
    return cuda_source(func).count("__global__") // 2


def test_numbers_and_threads() -> None:
    pairs = {name: in_parts(name) for name in SPLIT}
    plain = {name: kernel for name, (kernel, _) in pairs.items()}
    found = {name: kernel for name, (_, kernel) in pairs.items()}
    assert_numbers(plain, found)
    assert_emulated(plain, found, seeds=(1,))


@pytest.mark.parametrize("name", ["odd sum", "variance", "layer norm"])
def test_launches(name: str) -> None:
    source = cuda_source(in_parts(name)[1])
    assert source.count("__global__") == 2 * SPLIT[name][2]
    assert "atomic" not in source, "the same order in every run"


@pytest.mark.parametrize(
    ("expression", "shape", "count"),
    [
        (lambda x: op.sum(x), (10_000_000,), 2),
        (lambda x: nn.softmax(x, 1), (1, 1_000_000), 3),
        (lambda x: op.max(x, axis=[2, 3]), (1, 3, 2048, 2048), 2),
        (lambda x: op.sum(x, axis=[0]), (1_000_000, 8), 2),
        (lambda x: op.sum(x, axis=[1]), (500, 20_000), 1),
        (lambda x: op.sum(x), (5000,), 1),
    ],
)
def test_parts_are_for_few_long_rows(expression: object, shape: tuple, count: int) -> None:
    found = scheduled(TEMPLATE, kernel_of(expression, f32(*shape)))
    assert launches(found) == count


def test_a_dot_product_is_a_row() -> None:
    def dot(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return op.einsum((x, y), "i,i->")

    kernel = kernel_of(dot, f32(400_000), f32(400_000))
    found, choice = schedule_kernel(kernel, GPU)
    assert (choice.schedule, launches(found)) == ("row reduction", 2)
    assert any("one contraction" in refusal for refusal in choice.refusals)
    small = kernel_of(dot, f32(5000), f32(5000))
    decided = scheduled(TEMPLATE, small, decisions=FixedDecisions({"splits": 4}))
    plain = {"dot": small, "f16": product(1, 1, 1000), "few": product(1, 1, 2)}
    others = {name: scheduled(TEMPLATE, plain[name]) for name in ("f16", "few")}
    assert_numbers(plain, {"dot": decided, **others})


def test_rows_are_read_along_them() -> None:
    """What is stored once a row says nothing about how rows lie in memory."""
    source = cuda_source(
        scheduled(TEMPLATE, kernel_of(lambda x: op.sum(x, axis=[1]), f32(999, 960)))
    )
    assert "float4" in source
    assert "__shfl_xor_sync" in source


def test_a_row_that_waits_is_not_cut() -> None:
    func = kernel_of(lambda x: nn.softmax(x, 1), f32(2, 5000))
    sch = s_tir.Schedule(func)
    kernel = read_rows([sch.get(block) for block in kernel_blocks(sch)], func.params)
    with pytest.raises(NotApplicable, match="waits between two passes"):
        split_rows(kernel, 4)
