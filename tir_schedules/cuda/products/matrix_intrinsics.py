"""Matrix instructions of a warp (``ldmatrix``, ``mma.sync``) as intrinsics for ``tensorize``.

A tile is an array of ``[lane, register element]`` here, as ``matrix_fragments`` says. Each thread
has the whole array as local memory and uses row 0 of it only, with constant indices: the compiler
keeps that row in registers and drops the rest.

The intrinsics of ``tvm.s_tir.tensor_intrin.cuda`` hold tiles in scope "warp", which TVM 0.27 lowers
for one of several such arrays only, and take twenty seconds to import.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.tir_schedules.cuda.products.matrix_fragments import (
    PTX_NAMES,
    RESULTS_PER_THREAD,
    TILE,
    WARP,
    MatrixInstruction,
    Operand,
    result_element,
    result_fragment,
    row_of_lane,
)
from tvm_ext.tir_schedules.cuda.products.tf32_rounding import rounded_to_tf32

_PTX_RESULTS = {"float32": "fp32", "int32": "int32"}


def load_intrinsic(instruction: MatrixInstruction, operand: Operand, depth_last: bool) -> str:
    """Loads an operand's tile from shared memory; ``depth_last``: [row, step] in memory.

    Products of float32 get operands that are rounded to tf32: the instruction itself would cut off
    the bits that it does not take.
    """
    name = f"tvm_ext.mma_load_{operand}_{instruction.dtype}_{'rows' if depth_last else 'steps'}"
    return _registered(name, lambda: _load(instruction, operand, depth_last))


def multiply_intrinsic(instruction: MatrixInstruction) -> str:
    """Adds the product of two tiles to the results."""
    name = f"tvm_ext.mma_{instruction.dtype}_{instruction.accumulator}"
    return _registered(name, lambda: _multiply(instruction))


def fill_intrinsic(accumulator: str) -> str:
    """Sets the results to zero."""
    return _registered(f"tvm_ext.mma_fill_{accumulator}", lambda: _fill(accumulator))


def store_intrinsic(accumulator: str) -> str:
    """Writes the results to shared memory."""
    return _registered(f"tvm_ext.mma_store_{accumulator}", lambda: _store(accumulator))


def _registered(name: str, build: Callable[[], tuple[tirx.PrimFunc, tirx.PrimFunc]]) -> str:
    """``name``, registered on first use: what TVM has once it keeps for the process."""
    if TensorIntrin.get(name, allow_missing=True) is None:
        TensorIntrin.register(name, *build())
    return name


def _load(
    instruction: MatrixInstruction, operand: Operand, depth_last: bool
) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    depth, per_thread = instruction.depth, instruction.per_thread
    shape = (TILE, depth) if depth_last else (depth, TILE)

    def description() -> None:
        shared, tile = _shared(shape, instruction.dtype), _tile(per_thread, instruction.dtype)
        with T.sblock("root"):
            _accesses([_whole(shared)], [_whole(tile)])
            with T.grid(*shape) as loops, T.sblock("load"):
                i, j = _spatial(shape, loops)
                at = instruction.fragment(operand, *((i, j) if depth_last else (j, i)))
                _accesses([shared[i, j]], [tile[at]])
                T.buffer_store(tile, shared[i, j], list(at))

    def code() -> None:
        stride = T.int32()
        shared = _shared(shape, instruction.dtype, [stride, T.int32()])
        tile = _tile(per_thread, instruction.dtype)
        with T.sblock("root"):
            _accesses([_whole(shared)], [_whole(tile)])
            with T.thread_binding(0, WARP, "threadIdx.x") as lane:
                if depth_last or instruction.packed == 2:
                    offset = row_of_lane(instruction, operand, depth_last, lane, stride)
                    pointers = (tile.data, tile.elem_offset, shared.access_ptr("r"), offset)
                    T.evaluate(
                        T.ptx_legacy.ldmatrix(
                            not depth_last, 4, ".b16", *pointers, dtype=instruction.dtype
                        )
                    )
                else:
                    with T.unroll(0, per_thread) as position:
                        row, step = instruction.element(operand, lane, position)
                        T.buffer_store(tile, shared[step, row], [0, position])
                if instruction.rate == "tf32":
                    with T.unroll(0, per_thread) as position:
                        T.buffer_store(tile, rounded_to_tf32(tile[0, position]), [0, position])

    return _function(description), _function(code)


def _multiply(instruction: MatrixInstruction) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    dtype, accumulator, depth = instruction.dtype, instruction.accumulator, instruction.depth
    per_thread = instruction.per_thread

    def operands() -> tuple[Any, Any, Any]:
        tiles = _tile(per_thread, dtype), _tile(per_thread, dtype)
        return *tiles, _tile(RESULTS_PER_THREAD, accumulator)

    def description() -> None:
        a, b, c = operands()
        with T.sblock("root"):
            _accesses([_whole(c), _whole(a), _whole(b)], [_whole(c)])
            with T.grid(TILE, TILE, depth) as loops, T.sblock("multiply"):
                i, j = _spatial((TILE, TILE), loops[:2])
                k = T.axis.reduce(depth, loops[2])
                at_a, at_b = instruction.fragment("a", i, k), instruction.fragment("b", j, k)
                at_c = result_fragment(i, j)
                _accesses([c[at_c], a[at_a], b[at_b]], [c[at_c]])
                product = a[at_a].astype(accumulator) * b[at_b].astype(accumulator)
                T.buffer_store(c, c[at_c] + product, list(at_c))

    def code() -> None:
        a, b, c = operands()
        shape = f"m16n8k{depth}"
        names = (PTX_NAMES[dtype], PTX_NAMES[dtype], _PTX_RESULTS[accumulator])
        with T.sblock("root"):
            _accesses([_whole(c), _whole(a), _whole(b)], [_whole(c)])
            with T.thread_binding(0, WARP, "threadIdx.x"):
                # Two instructions of 8 columns each.
                for half in (0, 1):
                    of_b = b.elem_offset + half * per_thread // 2
                    of_c = c.elem_offset + half * RESULTS_PER_THREAD // 2
                    places = (a.data, a.elem_offset, b.data, of_b, c.data, of_c)
                    T.evaluate(
                        T.ptx_legacy.mma(
                            shape, "row", "col", *names, *places, False, dtype=accumulator
                        )
                    )

    return _function(description), _function(code)


def _fill(accumulator: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    zero = tirx.const(0, accumulator)

    def description() -> None:
        c = _tile(RESULTS_PER_THREAD, accumulator)
        with T.sblock("root"):
            _accesses([], [_whole(c)])
            with T.grid(TILE, TILE) as loops, T.sblock("fill"):
                at = result_fragment(*_spatial((TILE, TILE), loops))
                _accesses([], [c[at]])
                T.buffer_store(c, zero, list(at))

    def code() -> None:
        c = _tile(RESULTS_PER_THREAD, accumulator)
        with T.sblock("root"):
            _accesses([], [_whole(c)])
            with (
                T.thread_binding(0, WARP, "threadIdx.x"),
                T.unroll(0, RESULTS_PER_THREAD) as position,
            ):
                T.buffer_store(c, zero, [0, position])

    return _function(description), _function(code)


def _store(accumulator: str) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    def description() -> None:
        c, shared = _tile(RESULTS_PER_THREAD, accumulator), _shared((TILE, TILE), accumulator)
        with T.sblock("root"):
            _accesses([_whole(c)], [_whole(shared)])
            with T.grid(TILE, TILE) as loops, T.sblock("store"):
                i, j = _spatial((TILE, TILE), loops)
                at = result_fragment(i, j)
                _accesses([c[at]], [shared[i, j]])
                T.buffer_store(shared, c[at], [i, j])

    def code() -> None:
        c = _tile(RESULTS_PER_THREAD, accumulator)
        shared = _shared((TILE, TILE), accumulator, [T.int32(), T.int32()])
        with T.sblock("root"):
            _accesses([_whole(c)], [_whole(shared)])
            # The two neighbours that a lane has of each row go in one store of 8 bytes.
            with (
                T.thread_binding(0, WARP, "threadIdx.x") as lane,
                T.unroll(0, RESULTS_PER_THREAD // 2) as pair,
                T.vectorized(0, 2) as column,
            ):
                position = pair * 2 + column
                T.buffer_store(shared, c[0, position], list(result_element(lane, position)))

    return _function(description), _function(code)


def _function(body: Callable[[], None]) -> tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("main")
        body()
    return builder.get()


def _shared(shape: tuple[int, int], dtype: str, strides: Sequence[Any] | None = None) -> Any:
    """The parameter that is a tile in shared memory."""
    extra = {"strides": list(strides)} if strides is not None else {}
    handle = T.arg("shared", T.handle())
    return T.match_buffer(
        handle, shape, dtype, align=64, offset_factor=4, scope="shared.dyn", **extra
    )


def _tile(per_thread: int, dtype: str) -> Any:
    """The parameter that is a tile in the registers of a warp."""
    handle = T.arg("tile", T.handle())
    return T.match_buffer(
        handle, (WARP, per_thread), dtype, align=64, offset_factor=per_thread, scope="local"
    )


def _whole(buffer: Any) -> Any:
    return buffer[tuple(slice(0, int(size)) for size in buffer.shape)]


def _accesses(reads: list[Any], writes: list[Any]) -> None:
    T.reads(*reads)
    T.writes(*writes)


def _spatial(shape: Sequence[int], loops: Sequence[Any]) -> list[Any]:
    return [T.axis.spatial(n, loop) for n, loop in zip(shape, loops, strict=True)]
