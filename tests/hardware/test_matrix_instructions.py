"""The rows of the table are what kernels are made of, and what they are not made of has no row."""

import re
from dataclasses import replace

import pytest
import tvm
from thoroughness import one_in
from tvm import te

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.matrix_instructions import (
    CPU_INSTRUCTIONS,
    CUDA_INSTRUCTIONS,
    THREAD_INSTRUCTIONS,
    TILE_INSTRUCTIONS,
    WARP_INSTRUCTIONS,
    WARPGROUP_INSTRUCTIONS,
    MatrixInstruction,
    read_call,
)
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel

# Multiply-adds of whole vectors in assembly, by the elements' type.
_FMA = {
    "x86_64": {
        "float32": "vfmadd...ps",
        "float64": "vfmadd...pd",
        "float16": "vfmadd...ph",
    },
    "aarch64": {
        "float32": r"fmla\s+v.*\.4s",
        "float64": r"fmla\s+v.*\.2d",
        "float16": r"fmla\s+v.*\.8h",
    },
}


def in_assembly(row: MatrixInstruction, architecture: str) -> str:
    if row.name == "fma":
        return _FMA[architecture][row.a]
    if not row.adds:
        # LLVM joins it with the addition behind it where the CPU has both in one.
        return f"{row.name}|vpdpwssd"
    return row.name if architecture == "x86_64" else rf"\b{row.name}\s+v.*\.4s"


def matmul_assembly(
    machine: CpuDescription, types: tuple[str, str], total: str, depth: int = 256
) -> str:
    shapes = ((64, depth), (depth, 64))
    a, b = (te.placeholder(shape, dtype) for shape, dtype in zip(shapes, types, strict=True))
    k = te.reduce_axis((0, depth))
    c = te.compute(
        (64, 64), lambda i, j: te.sum(a[i, k].astype(total) * b[k, j].astype(total), axis=k)
    )
    func = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    func = func.with_attr(CONSTANTS_ATTRIBUTE, [1])
    scheduled, _ = schedule_kernel(func, machine)
    module = tvm.IRModule({"main": scheduled})
    return str(tvm.tirx.build(module, target=machine.tvm_target()).inspect_source("s"))


def has(machine: CpuDescription, needs: str) -> bool:
    return not needs or needs in machine.features


def machines_with(needs: str) -> list[CpuDescription]:
    tiles, arm = resolve_target("avx512-amx"), resolve_target("aarch64-neon")
    without = ("-amx-int8", "-amx-bf16", "-amx-tile")
    wide = CpuDescription(**(tiles.model_dump() | {"mattr": without}))
    half = CpuDescription(**(arm.model_dump() | {"mattr": ("+fullfp16", "+i8mm", "+bf16")}))
    older = CpuDescription(**(arm.model_dump() | {"mattr": ("+dotprod",)}))
    narrow = CpuDescription(**(resolve_target("avx2").model_dump() | {"mattr": ("+avxvnni",)}))
    found = [machine for machine in (wide, half, older, narrow) if has(machine, needs)]
    assert found
    return found


@pytest.mark.extended
@pytest.mark.parametrize(
    "row", one_in(2, CPU_INSTRUCTIONS), ids=lambda row: f"{row.name}-{row.a}-{row.needs}"
)
def test_kernels_have_the_instructions_of_the_table(row):
    for machine in machines_with(row.needs):
        fitting = [r for r in CPU_INSTRUCTIONS if r.a == row.a and has(machine, r.needs)]
        assert row in fitting
        assert machine.instructions(row.a) == tuple(fitting)
        # Sums of an odd number of its steps are for no instruction that takes twice as many.
        first = next(r for r in fitting if 33 * row.k % r.k == 0)
        # A CPU may have the same instruction by two names of a feature.
        assert replace(row, needs="") == replace(first, needs="")
        code = matmul_assembly(machine, (row.a, row.b), row.accumulator, 33 * row.k)
        assert re.search(in_assembly(row, machine.architecture), code)


@pytest.mark.parametrize("row", TILE_INSTRUCTIONS, ids=lambda row: row.name)
def test_kernels_have_the_instructions_of_tile_registers(row):
    machine = resolve_target("avx512-amx")
    assert machine.tile_instruction(row.a, row.b) == row
    code = matmul_assembly(machine, (row.a, row.b), row.accumulator)
    assert all(name in code for name in ("ldtilecfg", "tileloadd", row.name, "tilerelease"))
    assert all(machine.tile_instruction(row.a, row.b) is None for machine in machines_with(""))


def test_what_has_no_row_is_widened():
    x86 = [machine for machine in machines_with("") if machine.architecture == "x86_64"]
    for machine in (*x86, resolve_target("aarch64-neon")):
        assert machine.instruction("int8").a == "float32"
        code = matmul_assembly(machine, ("int8", "int8"), "int32")
        assert not re.search(r"vdpbf16|vpdpb|\btdp|mmla|\b[su]dot\b", code)


def test_depths_fill_registers_of_32_bits():
    for row in (*WARP_INSTRUCTIONS.values(), *WARPGROUP_INSTRUCTIONS.values()):
        assert row.packed * tvm.DataType(row.a).bits == 32
        assert row.k == 8 * row.packed


@pytest.mark.parametrize(
    ("name", "words", "row", "columns"),
    [
        (
            "tirx.ptx_legacy.mma",
            ["m16n8k8", "row", "col", "tf32", "tf32", "fp32"],
            WARP_INSTRUCTIONS["float32"],
            8,
        ),
        (
            "tirx.cuda.func_call",
            ["f", "wgmma.mma_async.sync.aligned.m64n192k32.s32.u8.s8 {"],
            WARPGROUP_INSTRUCTIONS["uint8", "int8"],
            192,
        ),
        ("tirx.tvm_mma_sync", [], CUDA_INSTRUCTIONS[-1], 16),
    ],
)
def test_calls_are_read(name, words, row, columns):
    assert read_call(name, words) == (row, columns)
    assert read_call("tirx.exp", ["shared"]) is None


def test_architectures():
    assert WARP_INSTRUCTIONS["int8"].runs_on("sm_90a")
    assert not WARP_INSTRUCTIONS["int8"].runs_on("sm_75")
    assert not WARPGROUP_INSTRUCTIONS["int8", "int8"].runs_on("sm_100")
    assert THREAD_INSTRUCTIONS["float32"].runs_on("sm_60")
