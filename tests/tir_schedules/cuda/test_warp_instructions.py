"""The intrinsics against the instructions as the PTX ISA defines them, emulated on integers."""

import numpy as np
import pytest
from tvm.s_tir import TensorIntrin

from tvm_ext.hardware.matrix_instructions import WARP_INSTRUCTIONS
from tvm_ext.tir_schedules.cuda.warp_instructions import (
    TILE,
    WARP,
    element,
    fragment,
    multiply_intrinsic,
    per_thread,
    result_element,
    result_fragment,
    row_of_lane,
)

TYPES = ["float16", "bfloat16", "int8", "float32"]


def loaded_by_ldmatrix(memory, instruction, operand, depth_last):
    """What the lanes hold after ldmatrix.x4 of a tile: PTX ISA, "ldmatrix", figures of fragments.

    Lane 8 m + r names row r of matrix m, of 16 bytes. Without .trans lane t gets from each matrix
    the 4 bytes at row t / 4, column t % 4; with it, elements (2 (t % 4) + e, t / 4) of 2 bytes.
    """
    packed, stride = instruction.packed, memory.shape[1]
    flat = memory.reshape(-1)
    held = np.zeros((WARP, per_thread(instruction)), memory.dtype)
    for lane in range(WARP):
        for matrix in range(4):
            for part in range(packed):
                row, column = lane // 4, lane % 4 * packed + part
                if not depth_last:
                    row, column = lane % 4 * 2 + part, lane // 4
                begins = row_of_lane(instruction, operand, depth_last, 8 * matrix + row, stride)
                held[lane, matrix * packed + part] = flat[begins + column]
    return held


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize("dtype", TYPES)
def test_fragments_are_one_to_one(dtype, operand):
    instruction = WARP_INSTRUCTIONS[dtype]
    places = {
        fragment(instruction, operand, row, step): (row, step)
        for row in range(TILE)
        for step in range(instruction.k)
    }
    assert len(places) == TILE * instruction.k
    assert all(element(instruction, operand, *place) == at for place, at in places.items())


@pytest.mark.parametrize("operand", ["a", "b"])
@pytest.mark.parametrize(
    ("dtype", "depth_last"),
    [(dtype, True) for dtype in TYPES] + [(dtype, False) for dtype in TYPES[:2]],
)
def test_ldmatrix_puts_elements_where_the_description_has_them(dtype, depth_last, operand):
    instruction = WARP_INSTRUCTIONS[dtype]
    shape = (TILE, instruction.k) if depth_last else (instruction.k, TILE)
    memory = np.arange(TILE * instruction.k, dtype="int64").reshape(shape)
    held = loaded_by_ldmatrix(memory, instruction, operand, depth_last)
    for row in range(TILE):
        for step in range(instruction.k):
            place = fragment(instruction, operand, row, step)
            assert held[place] == (memory[row, step] if depth_last else memory[step, row])


@pytest.mark.parametrize("dtype", TYPES)
def test_fragments_are_those_of_mma(dtype):
    """PTX ISA, "Matrix fragments for mma.m16n8k16" and its like: groupID and threadID_in_group."""
    instruction = WARP_INSTRUCTIONS[dtype]
    packed, half = instruction.packed, instruction.k // 2
    for lane in range(WARP):
        group, thread = divmod(lane, 4)
        for register in range(4):
            for part in range(packed):
                step = thread * packed + part
                position = register * packed + part
                row = group + 8 * (register % 2)
                assert element(instruction, "a", lane, position) == (
                    row,
                    step + half * (register // 2),
                )
                # Two instructions of 8 columns, with two registers of B each.
                column = group + 8 * (register // 2)
                assert element(instruction, "b", lane, position) == (
                    column,
                    step + half * (register % 2),
                )
        for position in range(8):
            row, column = result_element(lane, position)
            assert row == group + 8 * (position % 4 // 2)
            assert column == 8 * (position // 4) + 2 * thread + position % 2
            assert result_fragment(row, column) == (lane, position)


def test_intrinsics_are_registered_once():
    instruction = WARP_INSTRUCTIONS["float16"]
    name = multiply_intrinsic(instruction)
    assert name == multiply_intrinsic(instruction)
    assert TensorIntrin.get(name).desc.params[0].ty.shape[0] == WARP
