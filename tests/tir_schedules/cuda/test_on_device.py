"""Templates on a real GPU, with ``make test-cuda``: the numbers of kernels as TVM wrote them."""

import pytest
from attention_cases import FLOAT32_ATTENTIONS, WARP_ATTENTIONS, compare, scheduled_attention
from attention_kernels import AttentionCase
from cuda_kernels import scheduled
from lowering import kernel_of
from matmul_kernels import in_instructions
from needs_gpu import NEEDS_GPU
from on_device import assert_on_device, built, machine
from template_cases import KERNELS_OF_MODELS, MATMULS, POINTWISE, ROWS, TRANSPOSES
from warpgroup_attention_cases import WARPGROUP_ATTENTIONS, take_all

from tvm_ext.hardware.matrix_instructions import WARPGROUP_ARCHITECTURE
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_attention import WarpgroupAttention
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

pytestmark = NEEDS_GPU


@pytest.mark.parametrize("number", range(len(KERNELS_OF_MODELS)))
def test_kernels_of_models(number: int) -> None:
    template, expression, inputs = KERNELS_OF_MODELS[number]
    plain = kernel_of(expression, *inputs)
    assert_on_device(plain, scheduled(template, plain, machine()), machine())


GROUPS = {
    RowReduction: ROWS,
    CudaTranspose: TRANSPOSES,
    CudaElementwise: POINTWISE,
}


@pytest.mark.parametrize(
    ("template", "name"), [(kind, name) for kind, named in GROUPS.items() for name in named]
)
def test_kernels_of_odd_sizes(template: type, name: str) -> None:
    expression, *inputs = GROUPS[template][name]
    plain = kernel_of(expression, *inputs)
    assert_on_device(plain, scheduled(template(), plain, machine()), machine())


@pytest.mark.parametrize("name", MATMULS)
def test_products(name: str) -> None:
    plain, how = MATMULS[name]
    assert_on_device(plain, in_instructions(plain, machine(), **how), machine())


ALL_ATTENTIONS = {**WARP_ATTENTIONS, **FLOAT32_ATTENTIONS}


@pytest.mark.parametrize("name", ALL_ATTENTIONS)
def test_attention_by_warps(name: str) -> None:
    case = ALL_ATTENTIONS[name]
    compare({name: case}, {name: built(scheduled_attention(case, machine()), machine())}, (0,))


@pytest.mark.parametrize("name", WARPGROUP_ATTENTIONS)
def test_attention_by_warpgroups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if machine().arch != WARPGROUP_ARCHITECTURE:
        pytest.skip("the GPU has no instructions of warpgroups")
    take_all(monkeypatch)
    case = WARPGROUP_ATTENTIONS[name]
    kernel = built(scheduled_attention(case, machine(), WarpgroupAttention()), machine())
    compare({name: case}, {name: kernel}, (0,))


LONG = [
    AttentionCase(2, 4, 1000, 1000, depth, dtype=dtype, causal=causal, group=group)
    for depth, dtype, causal, group in (
        (64, "float16", None, 1),
        (64, "bfloat16", 0, 2),
        (128, "float16", 0, 1),
        (128, "bfloat16", None, 4),
        (256, "float16", 0, 1),
    )
]


@pytest.mark.parametrize("case", LONG, ids=str)
def test_attention_of_long_sequences(case: AttentionCase) -> None:
    found, _ = schedule_kernel(case.function(), machine())
    compare({"long": case}, {"long": built(found, machine())}, (0,))
