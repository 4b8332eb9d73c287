"""Hopper's instructions of warpgroups and of TMA copies as calls in TIR.

Each is a device function of one PTX instruction; the kernel around them is TIR. Names in
brackets are chapters of the PTX ISA 8.5: [mbarrier], [cp.async.bulk.tensor], [wgmma.mma_async],
[setmaxnreg], [barrier.cluster], [mapa]. A warpgroup is 128 threads; all of them run the
instructions of ``wgmma``.

TVM 0.27 has most of these as intrinsics of its own, but a ``wgmma`` of 128 results as 128
arguments by reference, which must be named one by one, and with a constant for whether to add
to them.
"""

import tvm
from tvm import tirx

from tvm_ext.hardware.matrix_instructions import (
    PTX_TYPES,
    WARPGROUP_INSTRUCTIONS,
    MatrixInstruction,
)
from tvm_ext.tir_schedules.cuda.warp_instructions import call_device_function as _call
from tvm_ext.tir_schedules.cuda.warp_instructions import call_statement
from tvm_ext.tir_schedules.cuda.warp_instructions import call_statement as _statement

WARPGROUP = 128

_HALF = WARPGROUP_INSTRUCTIONS["float16", "float16"]
ROWS = _HALF.m
"""Rows of results of one instruction, of which each warp of the group has 16."""
DEPTH = _HALF.k
"""Steps of the reduction in one instruction for types of 16 bits."""
DEPTH_BYTES = 2 * DEPTH
"""Bytes of the steps of the reduction in one instruction."""

BASE_ALIGNMENT = 1024
"""Bytes after which the pattern of a swizzle by 128 bytes repeats."""

ACROSS = tuple(a for (a, _), row in WARPGROUP_INSTRUCTIONS.items() if row.across)
"""Types whose rows or columns, not only steps, may be neighbours in memory."""

# Bits 62 and 63 of a descriptor by the bytes of a swizzled row: [wgmma], "Matrix Descriptor
# Format".
_SWIZZLES = {128: 1, 64: 2, 32: 3}


def shared_address(pointer: tvm.ir.Expr) -> tvm.ir.Expr:
    """Where shared memory begins, as the instructions name it, rounded up to ``BASE_ALIGNMENT``."""
    ones = BASE_ALIGNMENT - 1
    body = f"return ((unsigned)__cvta_generic_to_shared(p) + {ones}u) & ~{ones}u;"
    return _call("tvm_ext_shared_address", "unsigned", "void* p", body, pointer, dtype="uint32")


def barrier_init(address: tvm.ir.Expr, arrivals: int) -> tirx.Stmt:
    """A barrier in shared memory whose phases end after so many arrivals."""
    asm = 'asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(a), "r"(n) : "memory");'
    return _statement("tvm_ext_barrier_init", "unsigned a, unsigned n", asm, address, arrivals)


def barrier_init_done() -> tirx.Stmt:
    """Makes barriers known to TMA copies and to the other threads of the block."""
    asm = (
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n'
        '  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n'
        "  __syncthreads();"
    )
    return _statement("tvm_ext_barrier_init_done", "", asm)


def barrier_wait(
    address: tvm.ir.Expr, parity: tvm.ir.Expr, *, of_cluster: bool = False
) -> tirx.Stmt:
    """Waits for the end of the phase of ``parity``: of the one before the first for 1 at first.

    ``of_cluster``: for arrivals of all blocks of the cluster.
    """
    name, scope = ("cluster", ".acquire.cluster") if of_cluster else ("barrier", "")
    asm = (
        "unsigned done = 0;\n"
        "  do {\n"
        '    asm volatile("{ .reg .pred p; "\n'
        f'      "mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [%1], %2; "\n'
        '      "selp.u32 %0, 1, 0, p; }"\n'
        '      : "=r"(done) : "r"(a), "r"(parity) : "memory");\n'
        "  } while (!done);"
    )
    params = "unsigned a, unsigned parity"
    return _statement(f"tvm_ext_{name}_wait", params, asm, address, parity)


def barrier_arrive(address: tvm.ir.Expr, wanted: tvm.ir.Expr) -> tirx.Stmt:
    """An arrival of the threads with ``wanted``, without a branch around it."""
    asm = (
        'asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; "\n'
        '    "@p mbarrier.arrive.shared::cta.b64 _, [%0]; }" :: "r"(a), "r"(wanted) : "memory");'
    )
    return _statement("tvm_ext_barrier_arrive", "unsigned a, unsigned wanted", asm, address, wanted)


def barrier_expect(address: tvm.ir.Expr, count: int) -> tirx.Stmt:
    """An arrival; the phase then also waits for ``count`` bytes of TMA copies."""
    asm = (
        'asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"\n'
        '    :: "r"(a), "r"(n) : "memory");'
    )
    return _statement("tvm_ext_barrier_expect", "unsigned a, unsigned n", asm, address, count)


def prefetch_map(tensor_map: tvm.ir.Expr) -> tirx.Stmt:
    """Brings a tensor map near before its first use."""
    asm = 'asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");'
    return _statement(
        "tvm_ext_prefetch_map", "unsigned long long map", asm, tirx.address_of(tensor_map)
    )


def copy_box(
    destination: tvm.ir.Expr,
    tensor_map: tvm.ir.Expr,
    at: list[tvm.ir.Expr],
    barrier: tvm.ir.Expr,
    blocks: int = 0,
) -> tirx.Stmt:
    """A TMA copy of a box of a tensor, whose bytes ``barrier`` counts; one thread starts it.

    ``at``: the first element, fastest dimension first. What is outside of the tensor is zero.
    ``blocks``: with a bit for each block of a cluster whose shared memory gets the box, at the
    same place, and whose barrier counts it; 0 for only this block.
    """
    several, mask = (".multicast::cluster", f", {blocks:#x}") if blocks else ("", "")
    rank = len(at)
    places = ", ".join(f"%{number + 3}" for number in range(rank))
    inputs = ", ".join(f'"r"(c{number})' for number in range(rank))
    asm = (
        f'asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier"\n'
        f'    "::complete_tx::bytes{several} [%0], [%1, {{{places}}}], [%2]{mask};"\n'
        f'    :: "r"(to), "l"(map), "r"(barrier), {inputs} : "memory");'
    )
    coordinates = ", ".join(f"int c{number}" for number in range(rank))
    params = f"unsigned to, unsigned long long map, unsigned barrier, {coordinates}"
    return _statement(
        f"tvm_ext_copy_box_{rank}d" + (f"_to_{blocks}" if blocks else ""),
        params,
        asm,
        destination,
        tirx.address_of(tensor_map),
        barrier,
        *at,
    )


def descriptor(
    address: tvm.ir.Expr, leading_bytes: int, stride_bytes: int, row_bytes: int = 128
) -> tvm.ir.Expr:
    """What names a matrix in shared memory with swizzled rows of ``row_bytes`` to ``multiply``.

    [wgmma], "Matrix Descriptor Format": 14 bits each, in units of 16 bytes. Groups of 8 rows are
    ``stride_bytes`` apart. Along rows that are longer than that, ``leading_bytes``; with the
    depth along the rows there are none and it is not looked at.
    """
    high = _SWIZZLES[row_bytes] << 62 | (stride_bytes >> 4) << 32 | (leading_bytes >> 4) << 16
    body = f"return {high:#x}ull | ((address & 0x3ffffu) >> 4);"
    name = f"tvm_ext_descriptor_{leading_bytes}_{stride_bytes}"
    name += f"_{row_bytes}" if row_bytes != 128 else ""
    return _call(name, "unsigned long long", "unsigned address", body, address, dtype="uint64")


def multiply(
    results: tvm.ir.Expr,
    a: tvm.ir.Expr,
    b: tvm.ir.Expr,
    add: tvm.ir.Expr,
    columns: int,
    instruction: MatrixInstruction,
    across: tuple[bool, bool],
) -> tirx.Stmt:
    """``results`` += A @ B, of 64 x 32 bytes and 32 bytes x ``columns``; see ``finish``.

    Parameters
    ----------
    results : pointer
        ``columns / 2`` float32 of each thread, int32 for products of integers, laid out as
        [wgmma.mma_async], "Register fragments".
    a, b : uint64
        Descriptors.
    add : uint32
        0 for ``results`` = A @ B.
    instruction : MatrixInstruction
        One of ``WARPGROUP_INSTRUCTIONS``; of float32 the last 13 bits are not looked at.
    across : (bool, bool)
        For A and B whether rows, or columns, are neighbours in memory instead of steps; both False
        for types that are not in ``ACROSS``.
    """
    count = columns // 2
    registers = ", ".join(f"%{number}" for number in range(count))
    types = [PTX_TYPES[dtype] for dtype in (instruction.a, instruction.b)]
    integers = instruction.accumulator == "int32"
    total = "s32" if integers else "f32"
    shape = f"m{instruction.m}n{columns}k{instruction.k}.{total}.{types[0]}.{types[1]}"
    # Factors of 1 for A and B, which integers have none of, and which of them are transposed.
    flags = "" if integers else ", 1, 1"
    flags += "".join(f", {int(flag)}" for flag in across) if instruction.across else ""
    held, constraint, _ = _result(instruction.a)
    outputs = ", ".join(f'"+{constraint}"(d[{number}])' for number in range(count))
    asm = (
        f'asm volatile("{{ .reg .pred p; setp.ne.u32 p, %{count + 2}, 0; "\n'
        f'    "wgmma.mma_async.sync.aligned.{shape} "\n'
        f'    "{{{registers}}}, "\n'
        f'    "%{count}, %{count + 1}, p{flags}; }}"\n'
        f'    : {outputs}\n    : "l"(a), "l"(b), "r"(add) : "memory");'
    )
    order = "".join("mn"[place] if flag else "k" for place, flag in enumerate(across))
    kind = "_".join(dict.fromkeys(types))
    name = f"tvm_ext_multiply_n{columns}_{kind}_{order}"
    params = f"{held}* d, unsigned long long a, unsigned long long b, unsigned add"
    return _statement(name, params, asm, results, a, b, add)


def start() -> tirx.Stmt:
    """Before the first of some products: registers and shared memory are as they must be."""
    asm = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
    return _statement("tvm_ext_multiply_start", "", asm)


def commit() -> tirx.Stmt:
    """The products since the last call are one group."""
    asm = 'asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");'
    return _statement("tvm_ext_multiply_commit", "", asm)


def finish(pending: int) -> tirx.Stmt:
    """Waits until no more than the last ``pending`` groups are under way."""
    asm = f'asm volatile("wgmma.wait_group.sync.aligned {pending};" ::: "memory");'
    return _statement(f"tvm_ext_multiply_finish_{pending}", "", asm)


def settle(results: tvm.ir.Expr, columns: int, dtype: str = "float16") -> tirx.Stmt:
    """Keeps the compiler from reading results before, or writing them after, this place.

    ``dtype``: of the products' operand A.
    """
    held, constraint, end = _result(dtype)
    body = (
        "#pragma unroll\n"
        f"  for (int i = 0; i < {columns // 2}; ++i) "
        f'asm volatile("" : "+{constraint}"(d[i]) :: "memory");'
    )
    return _statement(f"tvm_ext_settle_{columns}{end}", f"{held}* d", body, results)


def gather_columns(results: tvm.ir.Expr, columns: int, dtype: str = "float16") -> tirx.Stmt:
    """Exchanges results among four neighbouring lanes so that each has 8 neighbouring columns.

    Before, lane ``t`` of four has columns ``8 j + 2 t`` and the next of every ``j``. A transpose
    of 4 x 4 pairs, of four ``j`` by four lanes, in two rounds of a butterfly. See ``position``.
    ``dtype``: of the products' operand A.
    """
    held, _, end = _result(dtype)
    body = (
        "const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;\n"
        f"  auto swap = []({held}& first, {held}& second, bool upper, int distance) {{\n"
        f"    const {held} given = upper ? first : second;\n"
        f"    const {held} taken = __shfl_xor_sync(0xffffffffu, given, distance);\n"
        "    first = upper ? taken : first;\n"
        "    second = upper ? second : taken;\n"
        "  };\n"
        "  #pragma unroll\n"
        f"  for (int i = 0; i < {columns // 2}; i += 16) {{\n"
        "    #pragma unroll\n"
        "    for (int e = 0; e < 4; ++e) {\n"
        "      swap(d[i + e], d[i + 4 + e], odd, 1);\n"
        "      swap(d[i + 8 + e], d[i + 12 + e], odd, 1);\n"
        "      swap(d[i + e], d[i + 8 + e], high, 2);\n"
        "      swap(d[i + 4 + e], d[i + 12 + e], high, 2);\n"
        "    }\n"
        "  }"
    )
    return _statement(f"tvm_ext_gather_columns_{columns}{end}", f"{held}* d", body, results)


def position(
    group: tirx.Expr | int, half: tirx.Expr | int, column: tirx.Expr | int
) -> tirx.Expr | int:
    """After ``gather_columns``, where one of a thread's results is among them.

    The thread has rows ``lane // 4 + 8 half`` of its warp's 16, and of every ``group`` of 32
    columns the 8 from ``8 (lane % 4)``, of which this is ``column``.
    """
    return group * 16 + column // 2 * 4 + half * 2 + column % 2


def change_registers(count: int, more: bool) -> tirx.Stmt:
    """Gives each thread of the warpgroup ``count`` registers; [setmaxnreg]."""
    kind = "inc" if more else "dec"
    asm = f'asm volatile("setmaxnreg.{kind}.sync.aligned.u32 {count};" ::: "memory");'
    return _statement(f"tvm_ext_registers_{kind}_{count}", "", asm)


def results_dtype(dtype: str) -> str:
    """The type in which products of ``dtype`` are added up."""
    return WARPGROUP_INSTRUCTIONS[dtype, dtype].accumulator


def _result(dtype: str) -> tuple[str, str, str]:
    """Of results of products of ``dtype``: C++ type, constraint in assembly, end of names."""
    return ("int", "r", "_s32") if results_dtype(dtype) == "int32" else ("float", "f", "")


# Results that what follows takes in 16 bits: rounded first, two to a register, then exchanged.


_C_TYPES = {"float16": ("half", "__half"), "bfloat16": ("nv_bfloat16", "__bfloat16")}

DTYPES = tuple(_C_TYPES)
"""Types that results can be packed in."""


def pack_columns(results: tvm.ir.Expr, packed: tvm.ir.Expr, columns: int, dtype: str) -> tirx.Stmt:
    """Writes ``results``, rounded to ``dtype``, to ``packed`` with 8 neighbouring columns a thread.

    The exchange of ``warp_group_instructions.gather_columns``, with half as many shuffles: both of
    the neighbours that a thread has are in one register. Places are those of ``position``.

    Parameters
    ----------
    results, packed : pointer
        ``columns / 2`` float32, and as many of ``dtype``.
    columns : int
        Of the tile.
    dtype : str
        One of ``DTYPES``.
    """
    c_type, prefix = _C_TYPES[dtype]
    body = (
        "const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;\n"
        "  auto swap = [](unsigned& first, unsigned& second, bool upper, int distance) {\n"
        "    const unsigned given = upper ? first : second;\n"
        "    const unsigned taken = __shfl_xor_sync(0xffffffffu, given, distance);\n"
        "    first = upper ? taken : first;\n"
        "    second = upper ? second : taken;\n"
        "  };\n"
        "  #pragma unroll\n"
        f"  for (int i = 0; i < {columns // 2}; i += 16) {{\n"
        "    unsigned p[8];\n"
        "    #pragma unroll\n"
        "    for (int e = 0; e < 8; ++e) {\n"
        f"      const unsigned low = {prefix}_as_ushort(({c_type})d[i + 2 * e]);\n"
        f"      p[e] = low | (unsigned){prefix}_as_ushort(({c_type})d[i + 2 * e + 1]) << 16;\n"
        "    }\n"
        "    #pragma unroll\n"
        "    for (int e = 0; e < 2; ++e) {\n"
        "      swap(p[e], p[2 + e], odd, 1);\n"
        "      swap(p[4 + e], p[6 + e], odd, 1);\n"
        "      swap(p[e], p[4 + e], high, 2);\n"
        "      swap(p[2 + e], p[6 + e], high, 2);\n"
        "    }\n"
        "    #pragma unroll\n"
        "    for (int e = 0; e < 8; ++e) {\n"
        f"      h[i + 2 * e] = __ushort_as{prefix[1:]}((unsigned short)p[e]);\n"
        f"      h[i + 2 * e + 1] = __ushort_as{prefix[1:]}((unsigned short)(p[e] >> 16));\n"
        "    }\n"
        "  }"
    )
    name = f"tvm_ext_pack_columns_{columns}_{dtype}"
    return call_statement(name, f"float* d, {c_type}* h", body, results, packed)


# Instructions of warpgroups that only attention uses, as calls in TIR.
#
# Names in brackets are chapters of the PTX ISA 8.5.


OPERAND_REGISTERS = 4
"""Registers of 32 bits that hold a thread's part of 64 x 16 elements of A."""

# Number 0 is the barrier of all threads: [bar].
_FIRST_TURN = 1


def round_scores(weights: tvm.ir.Expr, scores: tvm.ir.Expr, keys: int, dtype: str) -> tirx.Stmt:
    """Scores of ``keys`` columns as operand A of the next product.

    [wgmma.mma_async], "Register fragments": of 16 columns a thread's results are, two and two, its
    four registers of A in their order.
    """
    asm = (
        "#pragma unroll\n"
        f"  for (int i = 0; i < {keys // 4}; ++i)\n"
        f'    asm volatile("cvt.rn.{PTX_TYPES[dtype]}x2.f32 %0, %1, %2;"\n'
        '      : "=r"(w[i]) : "f"(s[2 * i + 1]), "f"(s[2 * i]));'
    )
    name = f"tvm_ext_round_scores_{keys}_{PTX_TYPES[dtype]}"
    return call_statement(name, "unsigned* w, const float* s", asm, weights, scores)


def multiply_registers(
    results: tvm.ir.Expr,
    weights: tvm.ir.Expr,
    first: int,
    b: tvm.ir.Expr,
    add: tvm.ir.Expr,
    columns: int,
    dtype: str,
) -> tirx.Stmt:
    """``results`` += A @ B with A in registers and B's columns neighbours in memory.

    Parameters
    ----------
    results : pointer
        ``columns / 2`` float32 of each thread, as of ``warp_group_instructions.multiply``.
    weights : pointer
        What ``round_scores`` made; A begins at register ``first``.
    b : uint64
        Descriptor of 16 x ``columns`` elements of ``dtype``.
    add : uint32
        0 for ``results`` = A @ B.
    """
    count = columns // 2
    registers = ", ".join(f"%{number}" for number in range(count))
    left = ", ".join(f"%{count + number}" for number in range(OPERAND_REGISTERS))
    b_at, add_at = count + OPERAND_REGISTERS, count + OPERAND_REGISTERS + 1
    kind = PTX_TYPES[dtype]
    shape = f"m64n{columns}k{DEPTH}.f32.{kind}.{kind}"
    outputs = ", ".join(f'"+f"(d[{number}])' for number in range(count))
    inputs = ", ".join(f'"r"(a[{first + number}])' for number in range(OPERAND_REGISTERS))
    asm = (
        f'asm volatile("{{ .reg .pred p; setp.ne.u32 p, %{add_at}, 0; "\n'
        f'    "wgmma.mma_async.sync.aligned.{shape} "\n'
        f'    "{{{registers}}}, {{{left}}}, "\n'
        f'    "%{b_at}, p, 1, 1, 1; }}"\n'
        f'    : {outputs}\n    : {inputs}, "l"(b), "r"(add) : "memory");'
    )
    name = f"tvm_ext_multiply_registers_{first}_n{columns}_{kind}"
    params = "float* d, const unsigned* a, unsigned long long b, unsigned add"
    return call_statement(name, params, asm, results, weights, b, add)


def settle_weights(weights: tvm.ir.Expr, keys: int) -> tirx.Stmt:
    """Keeps the compiler from moving uses of ``weights`` across this place."""
    body = (
        "#pragma unroll\n"
        f'  for (int i = 0; i < {keys // 4}; ++i) asm volatile("" : "+r"(w[i]) :: "memory");'
    )
    return call_statement(f"tvm_ext_settle_weights_{keys}", "unsigned* w", body, weights)


def await_turn(group: tvm.ir.Expr) -> tirx.Stmt:
    """Waits until ``pass_turn`` was called for this warpgroup; [bar]."""
    return _turn("sync", group)


def pass_turn(group: tvm.ir.Expr) -> tirx.Stmt:
    """Says that it is the turn of another warpgroup; [bar]."""
    return _turn("arrive", group)


def _turn(kind: str, group: tvm.ir.Expr) -> tirx.Stmt:
    # Two warpgroups: the one that waits, and the one before it.
    asm = f'asm volatile("bar.{kind} %0, 256;" :: "r"(number) : "memory");'
    number = group + tirx.const(_FIRST_TURN, "int32")
    return call_statement(f"tvm_ext_turn_{kind}", "int number", asm, number)


# Blocks of a cluster, which reach each other's shared memory.


def cluster_meet(*, barriers_are_new: bool = False) -> tirx.Stmt:
    """Waits for all threads of the cluster that have not ended; [barrier.cluster].

    ``barriers_are_new``: barriers that a thread has initialised are then known to all blocks, and
    to TMA copies.
    """
    asm = (
        'asm volatile("barrier.cluster.arrive.release;" ::: "memory");\n'
        '  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");'
    )
    if not barriers_are_new:
        return call_statement("tvm_ext_cluster_meet", "", asm)
    fences = (
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n'
        '  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n  '
    )
    return call_statement("tvm_ext_cluster_begin", "", fences + asm)


def cluster_barrier_arrive(
    address: tvm.ir.Expr, block: tvm.ir.Expr, wanted: tvm.ir.Expr
) -> tirx.Stmt:
    """An arrival of the threads with ``wanted`` at the barrier of a ``block`` of the cluster.

    ``address``: of the barrier at the same place in this block.
    """
    asm = (
        'asm volatile("{ .reg .pred p; .reg .b32 there; setp.ne.u32 p, %2, 0; "\n'
        '    "@p mapa.shared::cluster.u32 there, %0, %1; "\n'
        '    "@p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"\n'
        '    :: "r"(a), "r"(block), "r"(wanted) : "memory");'
    )
    params = "unsigned a, unsigned block, unsigned wanted"
    return call_statement("tvm_ext_cluster_arrive", params, asm, address, block, wanted)
