"""Matrix instructions of a warp (``ldmatrix``, ``mma.sync``) as intrinsics for ``tensorize``.

A warp holds a 16x16 tile of results and the operands of it, each thread a few registers of 32 bits.
Which thread holds which element is fixed by the instruction: PTX ISA, "Matrix fragments for
mma.m16n8k16" (and m16n8k8, m16n8k32, which are the same counted in registers). A tile is an array
of ``[lane, register element]`` here. Each thread has the whole array as local memory and uses row
0 of it only, with constant indices: the compiler keeps that row in registers and drops the rest.

The intrinsics of ``tvm.s_tir.tensor_intrin.cuda`` hold tiles in scope "warp", which TVM 0.27 lowers
for one of several such arrays only, and take twenty seconds to import.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

WARP = 32
TILE = 16
RESULTS_PER_THREAD = TILE * TILE // WARP
"""Elements of a 16x16 tile of results that one thread holds."""

Operand = Literal["a", "b"]
OPERANDS: tuple[Operand, Operand] = ("a", "b")

PTX_NAMES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "tf32",
    "int8": "int8",
    "uint8": "uint8",
}
_PTX_RESULTS = {"float32": "fp32", "int32": "int32"}


@dataclass(frozen=True)
class MatrixInstruction:
    """One matrix instruction: ``mma.sync`` of 16 rows, 8 columns and 32 bytes of depth.

    Attributes
    ----------
    dtype : str
        Of the operands: "float16", "bfloat16", "int8", "uint8", or "float32", of which tensor cores
        take tf32: the upper 19 bits.
    accumulator : str
        Of the results: "float32" or "int32".
    on_tensor_cores : bool
        False for products of float32 that need all of their bits.
    """

    dtype: str
    accumulator: str
    on_tensor_cores: bool = True

    @property
    def packed(self) -> int:
        """Elements in a register of 32 bits."""
        return {"float32": 1, "int8": 4, "uint8": 4}.get(self.dtype, 2)

    @property
    def rate(self) -> str:
        """The type whose rate in a machine's description is that of the products."""
        return "tf32" if self.dtype == "float32" and self.on_tensor_cores else self.dtype

    @property
    def depth(self) -> int:
        """Steps of the reduction in one instruction."""
        return 8 * self.packed

    @property
    def per_thread(self) -> int:
        """Elements of a 16 x ``depth`` tile of an operand that one thread holds."""
        return TILE * self.depth // WARP

    def fragment(self, operand: Operand, row: Any, step: Any) -> tuple[Any, Any]:
        """Lane and position in it of an operand's element: ``row`` of A or column of B."""
        packed, half = self.packed, 4 * self.packed
        lane = row % 8 * 4 + step % half // packed
        high_row, high_step = row // 8, step // half
        pair = high_row + 2 * high_step if operand == "a" else high_step + 2 * high_row
        return lane, pair * packed + step % packed

    def element(self, operand: Operand, lane: Any, position: Any) -> tuple[Any, Any]:
        """The inverse of ``fragment``."""
        packed, half = self.packed, 4 * self.packed
        first, second = position // packed % 2, position // (2 * packed)
        high_row, high_step = (first, second) if operand == "a" else (second, first)
        return lane // 4 + 8 * high_row, lane % 4 * packed + half * high_step + position % packed

    def load(self, operand: Operand, depth_last: bool) -> str:
        """The intrinsic that loads an operand's tile; ``depth_last``: [row, step] in memory."""
        name = f"tvm_ext.mma_load_{operand}_{self.dtype}_{'rows' if depth_last else 'steps'}"
        return _registered(name, lambda: _load(self, operand, depth_last))

    def multiply(self) -> str:
        """The intrinsic that adds the product of two tiles to the results."""
        name = f"tvm_ext.mma_{self.dtype}_{self.accumulator}"
        return _registered(name, lambda: _multiply(self))

    def fill(self) -> str:
        """The intrinsic that sets the results to zero."""
        return _registered(f"tvm_ext.mma_fill_{self.accumulator}", lambda: _fill(self.accumulator))

    def store(self) -> str:
        """The intrinsic that writes the results to shared memory."""
        return _registered(
            f"tvm_ext.mma_store_{self.accumulator}", lambda: _store(self.accumulator)
        )


def result_fragment(row: Any, column: Any) -> tuple[Any, Any]:
    """Lane and position in it of an element of a 16x16 tile of results."""
    return row % 8 * 4 + column % 8 // 2, column // 8 * 4 + row // 8 * 2 + column % 2


def result_element(lane: Any, position: Any) -> tuple[Any, Any]:
    """The inverse of ``result_fragment``."""
    row = lane // 4 + position // 2 % 2 * 8
    return row, position // 4 * 8 + lane % 4 * 2 + position % 2


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

    return _function(description), _function(code)


def row_of_lane(
    instruction: MatrixInstruction, operand: Operand, depth_last: bool, lane: Any, stride: Any
) -> Any:
    """Where the row of 16 bytes begins that a lane names to ``ldmatrix``, in elements.

    Four matrices of 8 such rows become the four registers in order. With the depth along the rows
    the second is for A the lower half of the tile, and for B the second half of the depth; a
    matrix that is transposed while it is loaded has these the other way round.
    """
    low = lane % WARP // 8
    first, second = low % 2, low // 2
    along = 4 * instruction.packed
    if (operand == "a") == depth_last:
        return stride * (lane % 8 + 8 * first) + along * second
    return stride * (lane % 8 + 8 * second) + along * first


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
