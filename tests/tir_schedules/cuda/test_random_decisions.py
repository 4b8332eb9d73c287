"""Whatever a tuner decides, the numbers stay, and a block of threads stays within the machine."""

import random

import pytest
from cuda_kernels import assert_numbers, cuda_source, scheduled, shared_bytes
from lowering import f32, kernel_of
from machines import GPU
from thoroughness import one_in
from tvm import relax
from tvm.relax.op import nn

from tvm_ext.tir_schedules.cuda.elementwise import CudaElementwise
from tvm_ext.tir_schedules.cuda.row_reduction import RowReduction
from tvm_ext.tir_schedules.cuda.transpose import CudaTranspose
from tvm_ext.tir_schedules.template import FixedDecisions, SampledDecisions

op = relax.op
DRAWS = 6

KERNELS = {
    "broadcast": (CudaElementwise(), lambda x, y: op.add(x, y), (f32(9, 5, 24), f32(24))),
    "flat with a tail": (CudaElementwise(), op.exp, (f32(9, 149),)),
    "symmetric": (CudaTranspose(), op.permute_dims, (((90, 70), "float16"),)),
    "softmax": (RowReduction(), lambda x: nn.softmax(x, 1), (f32(5, 260),)),
    "columns": (RowReduction(), lambda x: nn.softmax(x, 0), (f32(41, 45),)),
    "argmax": (RowReduction(), lambda x: op.argmax(x, 1), (f32(5, 260),)),
    "norm": (
        RowReduction(),
        lambda x, g, b: nn.layer_norm(x, g, b, [-1]),
        (f32(7, 96), f32(96), f32(96)),
    ),
}


@pytest.mark.parametrize("name", one_in(2, KERNELS))
def test_numbers(name: str) -> None:
    template, expression, inputs = KERNELS[name]
    func = kernel_of(expression, *inputs)
    plain, found = {}, {}
    for seed in range(DRAWS):
        drawn = SampledDecisions(random.Random(seed))
        found[str(seed)] = scheduled(template, func, decisions=drawn)
        plain[str(seed)] = func
        # The same again from the recorded values.
        again = scheduled(template, func, decisions=FixedDecisions(drawn.free()))
        assert again.script() == found[str(seed)].script()
    assert len({func.script() for func in found.values()}) > 1
    assert_numbers(plain, found)


@pytest.mark.parametrize("name", KERNELS)
def test_blocks_within_the_machine(name: str) -> None:
    template, expression, inputs = KERNELS[name]
    func = kernel_of(expression, *inputs)
    for seed in range(2):
        source = cuda_source(
            scheduled(template, func, decisions=SampledDecisions(random.Random(seed)))
        )
        threads = int(source.split("__launch_bounds__(")[1].split(")")[0])
        assert threads <= GPU.max_threads_per_block
        assert shared_bytes(source) <= GPU.shared_memory_bytes
