"""What the analytic model of GPUs reads of a kernel, and how it ranks schedules."""

import pytest
import tvm
from cuda_kernels import scheduled
from lowering import f32, kernel_of
from matmul_kernels import f16, linear, product
from serial_gpu import gpu
from tvm import relax

from tvm_ext.hardware.matrix_instructions import WARP_INSTRUCTIONS, WARPGROUP_INSTRUCTIONS
from tvm_ext.tir_schedules.cuda.dlight_rules import TVM_RULES
from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.matmul.contraction import CudaContraction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_contraction import WarpgroupContraction
from tvm_ext.tir_schedules.template import FixedDecisions
from tvm_ext.tuning.cuda.cost_model import CudaCost, cuda_cost

GPU = gpu()
ADD = kernel_of(relax.op.add, f32(1024, 1024), f32(1024, 1024))
TRANSPOSE = kernel_of(relax.op.permute_dims, f32(1024, 1024))
LINEAR = kernel_of(linear, f16(1024, 1024), f16(1024, 1024), f16(1024))
SIMPLE = TVM_RULES[-1]


def cost_of(template, func, **decided) -> CudaCost:
    made = scheduled(template, func, GPU, FixedDecisions(decided))
    return cuda_cost(tvm.IRModule({"main": made.with_attr("global_symbol", "main")}), GPU)


def test_matrix_instructions_are_all_of_the_product():
    kernel = cost_of(CudaContraction(), LINEAR).kernel
    (flops,) = kernel.matrix_flops.values()
    assert flops * kernel.warps * kernel.blocks == 2 * 1024**3
    assert list(kernel.matrix_flops) == [WARP_INSTRUCTIONS["float16"]]
    assert kernel.parameter_bytes == (3 * 1024 * 1024 + 1024) * 2


def test_instructions_of_warpgroups_are_counted_in_the_warps_that_run_them():
    """Two of three groups of warps multiply, the third copies."""
    hopper = gpu("nvidia-h200")
    made = scheduled(WarpgroupContraction(), LINEAR, hopper)
    kernel = cuda_cost(
        tvm.IRModule({"main": made.with_attr("global_symbol", "main")}), hopper
    ).kernel
    flops = kernel.matrix_flops[WARPGROUP_INSTRUCTIONS["float16", "float16"]]
    assert flops * kernel.warps * kernel.blocks == 2 * 1024**3


def test_every_kernel_of_a_split_reduction_is_counted_in_its_own_blocks():
    """Two rounds of whole tiles, the steps of 24 tiles shared by all blocks, and what adds up."""
    hopper = gpu("nvidia-h200")
    decided = FixedDecisions({"tile_rows": 128, "tile_columns": 256, "split_blocks": 132})
    made = scheduled(WarpgroupContraction(), product(3072, 3072, 3072), hopper, decided)
    kernel = cuda_cost(
        tvm.IRModule({"main": made.with_attr("global_symbol", "main")}), hopper
    ).kernel
    assert kernel.blocks > 132
    flops = kernel.matrix_flops[WARPGROUP_INSTRUCTIONS["float16", "float16"]]
    flops *= kernel.warps * kernel.blocks
    assert 0.98 < flops / (2 * 3072**3) < 1.02


@pytest.mark.parametrize("vector", [1, 4])
def test_neighbours_share_sectors(vector):
    """Two operands and a result of 1,024 x 1,024 floats, eight to a sector, whatever the width."""
    kernel = cost_of(CudaElementwise(), ADD, vector=vector).kernel
    assert kernel.sectors * kernel.warps * kernel.blocks == 3 * 1024 * 1024 / 8
    assert kernel.widest == 4 * vector


def test_a_column_takes_a_sector_for_each_thread():
    turned = cost_of(SIMPLE, TRANSPOSE).kernel
    staged = cost_of(CudaTranspose(), TRANSPOSE).kernel
    # Eight elements to a sector where they are neighbours, one where they are not.
    assert turned.sectors * turned.warps * turned.blocks == 1024 * 1024 * (1 / 8 + 1)
    assert staged.sectors * staged.warps * staged.blocks == 1024 * 1024 * 2 / 8
    # The tile's columns are padded: no two threads of a warp wait for one bank.
    assert staged.bank_cycles == staged.memory_instructions / 2


@pytest.mark.parametrize(
    ("ours", "func"),
    [(CudaElementwise(), ADD), (CudaTranspose(), TRANSPOSE), (CudaContraction(), LINEAR)],
    ids=["elementwise", "transpose", "contraction"],
)
def test_templates_are_ahead_of_the_simplest_rule(ours, func):
    assert cost_of(ours, func).seconds < cost_of(SIMPLE, func).seconds


def test_no_kernel_is_faster_than_its_memory():
    for ours, func in (
        (CudaElementwise(), ADD),
        (CudaTranspose(), TRANSPOSE),
        (CudaContraction(), LINEAR),
    ):
        cost = cost_of(ours, func)
        floor = cost.kernel.parameter_bytes / (GPU.l2_gbs * 1e9)
        assert cost.seconds > floor + GPU.kernel_overhead_us * 1e-6
