"""Registers, spills and shared memory of attention kernels, as nvcc reports them."""

import pytest
from attention_cases import scheduled_attention
from attention_kernels import AttentionCase
from cuda_kernels import needs_nvcc, resources, whole_source

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.cuda.attention.attention_decision import TileLayout, decide_attention
from tvm_ext.tir_schedules.operators.attention_problem import read_problem
from tvm_ext.tir_schedules.statements import FlatViews
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS

MACHINES = [("nvidia-a100", "sm_80"), ("nvidia-h100", "sm_90")]


def of(case: AttentionCase, machine: str, arch: str, folder) -> list:
    gpu = resolve_target(machine)
    return resources(whole_source(scheduled_attention(case, gpu), machine=gpu), arch, folder)


@needs_nvcc
@pytest.mark.parametrize(
    ("machine", "arch", "depth"),
    [
        (*MACHINES[0], 64),
        (*MACHINES[1], 128),
        pytest.param(*MACHINES[0], 128, marks=pytest.mark.slow),
        pytest.param(*MACHINES[1], 64, marks=pytest.mark.slow),
    ],
)
def test_no_spills(machine, arch, depth, tmp_path):
    for used in of(AttentionCase(4, 16, 2048, 2048, depth, causal=0), machine, arch, tmp_path):
        assert used.spilled == used.stack == 0


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize(("machine", "arch"), MACHINES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("depth", [16, 32, 40, 80, 96, 160, 192, 256])
def test_no_spills_of_other_head_sizes(machine, arch, dtype, depth, tmp_path):
    for case in (
        AttentionCase(4, 16, 2048, 2048, depth, dtype=dtype),
        AttentionCase(8, 32, 1, 4096, depth, group=4),
    ):
        for used in of(case, machine, arch, tmp_path):
            assert used.spilled == used.stack == 0


@pytest.mark.parametrize("machine", ["nvidia-a100", "nvidia-h200", "nvidia-rtx4090"])
@pytest.mark.parametrize("depth", [16, 64, 80, 128, 256])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tiles_fit_every_machine(machine, depth, dtype):
    gpu = resolve_target(machine)
    for case in (
        AttentionCase(4, 16, 2048, 2048, depth, dtype=dtype),
        AttentionCase(1, 32, 1, 9999, depth, group=8, dtype=dtype),
    ):
        problem = read_problem(case.function(), FlatViews())
        tiles = decide_attention(problem, gpu, DEFAULT_DECISIONS)
        layout = TileLayout(problem, tiles)
        assert layout.shared_bytes <= gpu.dynamic_shared_memory_bytes
        assert layout.registers * tiles.warps * 32 <= gpu.registers_per_block
