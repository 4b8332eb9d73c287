"""Registers, spills and shared memory of the products, as nvcc and TVM report them."""

import pytest
import tvm
from cuda_kernels import needs_nvcc, resources, whole_source
from lowering import kernel_of
from machines import GPU
from matmul_kernels import f16, in_instructions, linear, product
from thoroughness import one_in
from tvm import tirx
from tvm.ir.instrument import pass_instrument
from tvm_ffi import structural_walk

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import MatmulTileSizes
from tvm_ext.tir_schedules.lowering_pipeline import pass_options


@needs_nvcc
@pytest.mark.parametrize(
    ("machine", "arch"), one_in(2, [("nvidia-a100", "sm_80"), ("nvidia-h100", "sm_90")]), ids=str
)
def test_the_largest_tiles_do_not_spill(machine, arch, tmp_path):
    kernel = kernel_of(linear, f16(4096, 4096), f16(4096, 4096), f16(4096))
    gpu = resolve_target(machine)
    source = whole_source(in_instructions(kernel, gpu), machine=gpu)
    (used,) = resources(source, arch, tmp_path)
    assert used.spilled == used.stack == 0
    assert used.registers <= 255


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
def test_every_type_is_assembled(dtype, tmp_path):
    total = "int32" if dtype == "int8" else "float32"
    kernel = product(200, 136, 1032, dtype=dtype, total=total, b_transposed=True)
    used = resources(whole_source(in_instructions(kernel, splits=2)), "sm_80", tmp_path)
    assert len(used) == 2
    assert all(kernel.spilled == kernel.stack == 0 for kernel in used)


@pytest.mark.parametrize("steps", [150, 148, 147])
@pytest.mark.parametrize("columns", [16, 51])
def test_float32_copied_by_four_two_and_one(steps, columns):
    source = whole_source(in_instructions(product(96, columns, steps, dtype="float32")))
    assert "__global__ void" in source


def shared_allocated(func: tirx.PrimFunc) -> int:
    """Bytes of shared memory of the kernel after TVM has laid its arrays over each other."""
    found: list[int] = []

    @pass_instrument
    class AfterMerge:
        def run_after_pass(self, mod, info):
            if "MergeSharedMemoryAllocations" in str(info.name):
                for lowered in mod.functions.values():
                    structural_walk(lowered, (tirx.AllocBuffer, note), order="pre")

    def note(allocation):
        if allocation.buffer.scope() == "shared.dyn":
            width = tvm.DataType(str(allocation.buffer.dtype)).bits // 8
            found.append(int(allocation.buffer.shape[0]) * width)

    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    target = tvm.target.Target(GPU.tvm_target(), host="llvm")
    options = pass_options(target)
    with tvm.transform.PassContext(opt_level=3, config=options, instruments=[AfterMerge()]):
        tirx.build(mod, target=target)
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_shared_memory_is_what_the_decision_reckons(stages, transposed):
    decided = {"tile_rows": 128, "tile_columns": 64, "tile_depth": 32, "stages": stages}
    decided |= {"warp_rows": 32, "warp_columns": 32}
    func = in_instructions(
        product(512, 512, 512, a_transposed=transposed, b_transposed=transposed), **decided
    )
    tiles = MatmulTileSizes(128, 64, 32, 32, 32, stages)
    taken = shared_allocated(func)
    assert 0.7 * tiles.shared_bytes(2) <= taken <= tiles.shared_bytes(2)
