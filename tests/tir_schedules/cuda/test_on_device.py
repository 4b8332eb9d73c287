"""Templates on a real GPU, with ``make test-cuda``: the numbers of kernels as TVM wrote them."""

import pytest
import test_attention
import test_emulated_templates
import test_resources
import test_warp_group_attention
from attention_cases import Case, compare
from gpu_kernels import scheduled
from lowering import kernel_of
from matrix_products import in_instructions
from needs_gpu import NEEDS_GPU
from on_device import assert_on_device, built, machine

from tvm_ext.hardware.matrix_instructions import WARPGROUP_ARCHITECTURE
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention import WarpgroupAttention
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("number", range(len(test_resources.KERNELS)))
def test_kernels_of_models(number: int) -> None:
    template, expression, inputs = test_resources.KERNELS[number]
    plain = kernel_of(expression, *inputs)
    assert_on_device(plain, scheduled(template, plain, machine()), machine())


GROUPS = {
    RowReduction: test_emulated_templates.ROWS,
    CudaTranspose: test_emulated_templates.MOVES,
    CudaElementwise: test_emulated_templates.POINTWISE,
}


@pytest.mark.parametrize(
    ("template", "name"), [(kind, name) for kind, named in GROUPS.items() for name in named]
)
def test_kernels_of_odd_sizes(template: type, name: str) -> None:
    expression, *inputs = GROUPS[template][name]
    plain = kernel_of(expression, *inputs)
    assert_on_device(plain, scheduled(template(), plain, machine()), machine())


@pytest.mark.parametrize("name", test_emulated_templates.PRODUCTS)
def test_products(name: str) -> None:
    plain, how = test_emulated_templates.PRODUCTS[name]
    assert_on_device(plain, in_instructions(plain, machine(), **how), machine())


ATTENTIONS = {**test_attention.CASES, **test_attention.SINGLE}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_by_warps(name: str) -> None:
    case = ATTENTIONS[name]
    compare({name: case}, {name: built(case.scheduled(machine()), machine())}, (0,))


@pytest.mark.parametrize("name", test_warp_group_attention.CASES)
def test_attention_by_warpgroups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if machine().arch != WARPGROUP_ARCHITECTURE:
        pytest.skip("the GPU has no instructions of warpgroups")
    test_warp_group_attention.take_all(monkeypatch)
    case = test_warp_group_attention.CASES[name]
    kernel = built(case.scheduled(machine(), WarpgroupAttention()), machine())
    compare({name: case}, {name: kernel}, (0,))


LONG = [
    Case(2, 4, 1000, 1000, depth, dtype=dtype, causal=causal, group=group)
    for depth, dtype, causal, group in (
        (64, "float16", None, 1),
        (64, "bfloat16", 0, 2),
        (128, "float16", 0, 1),
        (128, "bfloat16", None, 4),
        (256, "float16", 0, 1),
    )
]


@pytest.mark.parametrize("case", LONG, ids=str)
def test_attention_of_long_sequences(case: Case) -> None:
    found, _ = schedule_kernel(case.function(), machine())
    compare({"long": case}, {"long": built(found, machine())}, (0,))
