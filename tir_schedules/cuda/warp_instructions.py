"""PTX instructions of threads and warps as calls and as intrinsics for ``tensorize``.

``mma.sync`` and ``ldmatrix`` with the places of their fragments, ``cp.async``, shuffles,
barriers, and device functions whose CUDA code a kernel brings along. They name a place in a
buffer by its address, in elements from its start. Those of warpgroups are in
``warpgroup_instructions``.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import tvm
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.s_tir import TensorIntrin
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_ext.hardware.matrix_instructions import MMA_TYPES, MatrixInstruction

# Which thread of a warp holds which element of the tiles of a matrix instruction, ``mma.sync``.
#
# A warp holds a 16x16 tile of results and the operands of it, each thread a few registers of 32
# bits. Which thread holds which element is fixed by the instruction: PTX ISA, "Matrix fragments
# for mma.m16n8k16" (and m16n8k8, m16n8k32, which are the same counted in registers).


WARP = 32
TILE = 16
RESULTS_PER_THREAD = TILE * TILE // WARP
"""Elements of a 16x16 tile of results that one thread holds."""

Operand = Literal["a", "b"]
OPERANDS: tuple[Operand, Operand] = ("a", "b")


def per_thread(instruction: MatrixInstruction) -> int:
    """Elements of a tile of an operand, of 16 rows and all steps, that one thread holds."""
    return TILE * instruction.k // WARP


def fragment(
    instruction: MatrixInstruction, operand: Operand, row: tvm.ir.Expr, step: tvm.ir.Expr
) -> tuple[Any, Any]:
    """Lane and position in it of an operand's element: ``row`` of A or column of B."""
    packed, half = instruction.packed, 4 * instruction.packed
    lane = row % 8 * 4 + step % half // packed
    high_row, high_step = row // 8, step // half
    pair = high_row + 2 * high_step if operand == "a" else high_step + 2 * high_row
    return lane, pair * packed + step % packed


def element(
    instruction: MatrixInstruction, operand: Operand, lane: tvm.ir.Expr, position: tvm.ir.Expr
) -> tuple[Any, Any]:
    """The inverse of ``fragment``."""
    packed, half = instruction.packed, 4 * instruction.packed
    first, second = position // packed % 2, position // (2 * packed)
    high_row, high_step = (first, second) if operand == "a" else (second, first)
    return lane // 4 + 8 * high_row, lane % 4 * packed + half * high_step + position % packed


def result_fragment(row: tvm.ir.Expr, column: tvm.ir.Expr) -> tuple[Any, Any]:
    """Lane and position in it of an element of a 16x16 tile of results."""
    return row % 8 * 4 + column % 8 // 2, column // 8 * 4 + row // 8 * 2 + column % 2


def result_element(lane: tvm.ir.Expr, position: tvm.ir.Expr) -> tuple[Any, Any]:
    """The inverse of ``result_fragment``."""
    row = lane // 4 + position // 2 % 2 * 8
    return row, position // 4 * 8 + lane % 4 * 2 + position % 2


def row_of_lane(
    instruction: MatrixInstruction,
    operand: Operand,
    depth_last: bool,
    lane: tvm.ir.Expr,
    stride: Any,
) -> tvm.ir.Expr:
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


ALL_LANES = 0xFFFFFFFF


def load_matrices(
    instruction: MatrixInstruction,
    operand: Operand,
    depth_last: bool,
    registers: tuple[Any, Any],
    shared: tuple[Any, Any],
    stride: int,
    lane: tvm.ir.Expr,
) -> tirx.Stmt:
    """``ldmatrix``: a 16 x depth tile of an operand of 16-bit elements from shared memory.

    ``registers`` and ``shared`` are a buffer with the address of the tile; rows of the tile are
    ``stride`` elements apart. ``depth_last``: see ``load_intrinsic``.
    """
    (tile, at), (memory, start) = registers, shared
    address = start + row_of_lane(instruction, operand, depth_last, lane, stride)
    pointer = tirx.address_of(tirx.BufferLoad(memory, [address]))
    arguments = [not depth_last, 4, ".b16", tile.data, at, pointer, 0]
    return tirx.Evaluate(tirx.call_intrin(instruction.a, "tirx.ptx_legacy.ldmatrix", *arguments))


def multiply_matrices(
    instruction: MatrixInstruction, a: tuple[Any, Any], b: tuple[Any, Any], results: tuple[Any, Any]
) -> tirx.Stmt:
    """``mma.sync``: adds the product of 16 rows of A and 8 columns of B to the results.

    Each operand is an array of registers with the place of the tile's first element.
    """
    names = (MMA_TYPES[instruction.a], MMA_TYPES[instruction.a], "fp32")
    places = [part for array, at in (a, b, results) for part in (array.data, at)]
    shape = f"m16n8k{instruction.k}"
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


def from_lane(value: tvm.ir.Expr, distance: int) -> tvm.ir.Expr:
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


# Calls of device functions whose CUDA code the kernel brings along.


def call_statement(name: str, params: str, body: str, *args: tirx.Expr | int) -> tirx.Stmt:
    """A call of a function that returns nothing; see ``call_device_function``."""
    return tirx.Evaluate(call_device_function(name, "void", params, body, *args, dtype="void"))


def call_device_function(
    name: str, returned: str, params: str, body: str, *args: Any, dtype: str
) -> tvm.ir.Expr:
    """A call of the function ``name``, which is always inlined.

    Parameters
    ----------
    name : str
        Functions of one name are one: other code needs another name.
    returned, params, body : str
        CUDA C++: the type of the result, parameters, and statements.
    args : expressions
        Arguments.
    dtype : str
        Of the result in TIR.
    """
    source = f"static __device__ __forceinline__ {returned} {name}({params}) {{\n  {body}\n}}\n"
    return cuda_func_call(name, *args, source_code=source, return_type=dtype)


def in_use(pointer: tvm.ir.Expr) -> tirx.Stmt:
    """Says that a kernel uses an array of which it is only given a tensor map.

    Without it TVM 0.27 has the array end where its map is made, and puts another one there.
    """
    body = 'asm volatile("" :: "l"(p));'
    return call_statement("tvm_ext_in_use", "const void* p", body, pointer)


# float32 rounded to tf32, the 10 bits of mantissa that tensor cores take of it.


_NAME = "tvm_ext_rounded_to_tf32"

# No ``volatile``: what is rounded twice may be rounded once.
_SOURCE = f"""static __device__ __forceinline__ float {_NAME}(float x) {{
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return __uint_as_float(rounded);
}}
"""


def rounded_to_tf32(value: tirx.Expr) -> tirx.Expr:
    """The tf32 nearest to ``value``, float32, and of two as near the larger: PTX ISA, "cvt".

    Matrix instructions do not look at the last 13 bits. Left to them, products would be of operands
    that are too small by half a step on average, with twice the error and always to one side.
    """
    return cuda_func_call(_NAME, value, source_code=_SOURCE, return_type="float32")


# Matrix instructions of a warp (``ldmatrix``, ``mma.sync``) as intrinsics for ``tensorize``.
#
# A tile is an array of ``[lane, register element]`` here, as said above. Each thread
# has the whole array as local memory and uses row 0 of it only, with constant indices: the
# compiler keeps that row in registers and drops the rest.
#
# The intrinsics of ``tvm.s_tir.tensor_intrin.cuda`` hold tiles in scope "warp", which TVM 0.27
# lowers for one of several such arrays only, and take twenty seconds to import.


_PTX_RESULTS = {"float32": "fp32", "int32": "int32"}


def load_intrinsic(instruction: MatrixInstruction, operand: Operand, depth_last: bool) -> str:
    """Loads an operand's tile from shared memory; ``depth_last``: [row, step] in memory.

    Products of float32 get operands that are rounded to tf32: the instruction itself would cut off
    the bits that it does not take.
    """
    name = f"tvm_ext.mma_load_{operand}_{instruction.a}_{'rows' if depth_last else 'steps'}"
    return _registered(name, lambda: _load(instruction, operand, depth_last))


def multiply_intrinsic(instruction: MatrixInstruction) -> str:
    """Adds the product of two tiles to the results."""
    name = f"tvm_ext.mma_{instruction.a}_{instruction.accumulator}"
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
    depth, held = instruction.k, per_thread(instruction)
    shape = (TILE, depth) if depth_last else (depth, TILE)

    def description() -> None:
        shared, tile = _shared(shape, instruction.a), _tile(held, instruction.a)
        with T.sblock("root"):
            _accesses([_whole(shared)], [_whole(tile)])
            with T.grid(*shape) as loops, T.sblock("load"):
                i, j = _spatial(shape, loops)
                at = fragment(instruction, operand, *((i, j) if depth_last else (j, i)))
                _accesses([shared[i, j]], [tile[at]])
                T.buffer_store(tile, shared[i, j], list(at))

    def code() -> None:
        stride = T.int32()
        shared = _shared(shape, instruction.a, [stride, T.int32()])
        tile = _tile(held, instruction.a)
        with T.sblock("root"):
            _accesses([_whole(shared)], [_whole(tile)])
            with T.thread_binding(0, WARP, "threadIdx.x") as lane:
                if depth_last or instruction.across:
                    offset = row_of_lane(instruction, operand, depth_last, lane, stride)
                    pointers = (tile.data, tile.elem_offset, shared.access_ptr("r"), offset)
                    T.evaluate(
                        T.ptx_legacy.ldmatrix(
                            not depth_last, 4, ".b16", *pointers, dtype=instruction.a
                        )
                    )
                else:
                    with T.unroll(0, held) as position:
                        row, step = element(instruction, operand, lane, position)
                        T.buffer_store(tile, shared[step, row], [0, position])
                if instruction.rate == "tf32":
                    with T.unroll(0, held) as position:
                        T.buffer_store(tile, rounded_to_tf32(tile[0, position]), [0, position])

    return _function(description), _function(code)


def _multiply(instruction: MatrixInstruction) -> tuple[tirx.PrimFunc, tirx.PrimFunc]:
    dtype, accumulator, depth = instruction.a, instruction.accumulator, instruction.k
    held = per_thread(instruction)

    def operands() -> tuple[Any, Any, Any]:
        tiles = _tile(held, dtype), _tile(held, dtype)
        return *tiles, _tile(RESULTS_PER_THREAD, accumulator)

    def description() -> None:
        a, b, c = operands()
        with T.sblock("root"):
            _accesses([_whole(c), _whole(a), _whole(b)], [_whole(c)])
            with T.grid(TILE, TILE, depth) as loops, T.sblock("multiply"):
                i, j = _spatial((TILE, TILE), loops[:2])
                k = T.axis.reduce(depth, loops[2])
                at_a, at_b = fragment(instruction, "a", i, k), fragment(instruction, "b", j, k)
                at_c = result_fragment(i, j)
                _accesses([c[at_c], a[at_a], b[at_b]], [c[at_c]])
                product = a[at_a].astype(accumulator) * b[at_b].astype(accumulator)
                T.buffer_store(c, c[at_c] + product, list(at_c))

    def code() -> None:
        a, b, c = operands()
        shape = f"m16n8k{depth}"
        names = (MMA_TYPES[dtype], MMA_TYPES[dtype], _PTX_RESULTS[accumulator])
        with T.sblock("root"):
            _accesses([_whole(c), _whole(a), _whole(b)], [_whole(c)])
            with T.thread_binding(0, WARP, "threadIdx.x"):
                # Two instructions of 8 columns each.
                for half in (0, 1):
                    of_b = b.elem_offset + half * held // 2
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


def _shared(
    shape: tuple[int, int], dtype: str, strides: Sequence[Any] | None = None
) -> tirx.Buffer:
    """The parameter that is a tile in shared memory."""
    extra = {"strides": list(strides)} if strides is not None else {}
    handle = T.arg("shared", T.handle())
    return T.match_buffer(
        handle, shape, dtype, align=64, offset_factor=4, scope="shared.dyn", **extra
    )


def _tile(per_thread: int, dtype: str) -> tirx.Buffer:
    """The parameter that is a tile in the registers of a warp."""
    handle = T.arg("tile", T.handle())
    return T.match_buffer(
        handle, (WARP, per_thread), dtype, align=64, offset_factor=per_thread, scope="local"
    )


def _whole(buffer: tirx.Buffer) -> tvm.ir.TensorRegion:
    return buffer[tuple(slice(0, int(size)) for size in buffer.shape)]


def _accesses(reads: list[Any], writes: list[Any]) -> None:
    T.reads(*reads)
    T.writes(*writes)


def _spatial(shape: Sequence[int], loops: Sequence[tvm.ir.Expr]) -> list[tvm.ir.Expr]:
    return [T.axis.spatial(n, loop) for n, loop in zip(shape, loops, strict=True)]
