"""Instructions that a kernel written by hand uses: matrix instructions, copies, shuffles, barriers.

They name a place in a buffer by its address, in elements from its start.
"""

from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cuda.products.matrix_fragments import (
    PTX_NAMES,
    MatrixInstruction,
    Operand,
    row_of_lane,
)

ALL_LANES = 0xFFFFFFFF


def load_matrices(
    instruction: MatrixInstruction,
    operand: Operand,
    depth_last: bool,
    registers: tuple[Any, Any],
    shared: tuple[Any, Any],
    stride: int,
    lane: Any,
) -> tirx.Stmt:
    """``ldmatrix``: a 16 x depth tile of an operand of 16-bit elements from shared memory.

    ``registers`` and ``shared`` are a buffer with the address of the tile; rows of the tile are
    ``stride`` elements apart. ``depth_last``: see ``load_intrinsic``.
    """
    (tile, at), (memory, start) = registers, shared
    address = start + row_of_lane(instruction, operand, depth_last, lane, stride)
    pointer = tirx.address_of(tirx.BufferLoad(memory, [address]))
    arguments = [not depth_last, 4, ".b16", tile.data, at, pointer, 0]
    return tirx.Evaluate(
        tirx.call_intrin(instruction.dtype, "tirx.ptx_legacy.ldmatrix", *arguments)
    )


def multiply_matrices(
    instruction: MatrixInstruction,
    a: tuple[Any, Any],
    b: tuple[Any, Any],
    results: tuple[Any, Any],
) -> tirx.Stmt:
    """``mma.sync``: adds the product of 16 rows of A and 8 columns of B to the results.

    Each operand is an array of registers with the place of the tile's first element.
    """
    names = (PTX_NAMES[instruction.dtype], PTX_NAMES[instruction.dtype], "fp32")
    places = [part for array, at in (a, b, results) for part in (array.data, at)]
    shape = f"m16n8k{instruction.depth}"
    return tirx.Evaluate(
        tirx.call_intrin(
            instruction.accumulator,
            "tirx.ptx_legacy.mma",
            *(shape, "row", "col"),
            *names,
            *places,
            False,
        )
    )


def copy_asynchronously(shared: tuple[Any, Any], memory: tuple[Any, Any], nbytes: int) -> tirx.Stmt:
    """``cp.async`` of 4, 8 or 16 bytes, which both addresses are multiples of."""
    (to, at), (source, start) = shared, memory
    arguments = [to.data, at, source.data, start, nbytes]
    return tirx.Evaluate(tirx.call_intrin(str(to.dtype), "tirx.s_tir.cp_async_raw", *arguments))


def commit_copies() -> tirx.Stmt:
    """Ends a group of asynchronous copies."""
    return tirx.Evaluate(
        tirx.call_intrin("void", "tirx.ptx.cp_async_commit_group", "async", "commit_group", "")
    )


def await_copies(groups: int) -> tirx.Stmt:
    """Waits until all but the last ``groups`` groups of this thread's copies have arrived."""
    return tirx.Evaluate(
        tirx.call_intrin("void", "tirx.ptx.cp_async_wait_group", groups, "async", "wait_group", "")
    )


def block_barrier(scope: str = "shared.dyn") -> tirx.Stmt:
    """Waits for all threads of the block; what they wrote to shared memory can then be read."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", scope))


def from_lane(value: Any, distance: int) -> Any:
    """The value of the lane whose number differs from the own one in the bits of ``distance``."""
    mask = tirx.const(ALL_LANES, "uint32")
    return tirx.call_intrin(str(value.ty), "tirx.cuda.__shfl_xor_sync", mask, value, distance, 32)


def without_added_barriers(body: tirx.Stmt) -> tirx.Stmt:
    """``body``, whose barriers are all there: TVM adds none.

    TVM 0.27 takes all dynamic shared memory for one array when it looks for missing barriers, and
    would wait between a copy to one stage and a load from another.
    """
    return tirx.AttrStmt(
        tvm.ir.StringImm("barriers"),
        "hand_threaded",
        tirx.const(1, "int32"),
        body,
    )
