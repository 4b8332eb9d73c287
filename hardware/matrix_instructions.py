"""The instructions that add products: a table that descriptions, templates and cost models read.

A row is here when code that we make has the instruction. What a machine could do beside that has no
row, and no time is modelled for it: types without a row are widened, as LLVM does with what
templates write. To use another instruction, add its row and let a template emit it; rates, packing
and cost models follow.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

LANES = 0
"""As N of a row: as many columns as a vector register has elements."""

WARPGROUP_ARCHITECTURE = "sm_90a"

WARP_SHARE = 0.63
"""Share of Hopper's arithmetic rate that instructions of single warps reach: Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024.
"""


@dataclass(frozen=True)
class MatrixInstruction:
    """One instruction for ``C[M, N] += A[M, K] @ B[K, N]``.

    Attributes
    ----------
    name : str
        As manuals have it.
    intrinsic : str
        What templates write for it: a call of TVM, assembly, or plain multiplications and additions
        that the compiler contracts.
    m, n, k : int
        Its shape; ``n`` may be ``LANES``, and is the most columns of ``wgmma``. Of vectors, ``k``
        products are added to each lane.
    a, b, accumulator : str
        Types of the operands, as buffers have them, and of the sums.
    held : str
        Where operands are: "lanes" of vector registers, one value of A in all of them; "pairs" of
        rows, and of columns, in vector registers; "tiles", registers of rows; registers of one
        "thread", or of the threads of a "warp"; or "shared" memory, in swizzled rows.
    packed : int
        Neighbouring steps of K in one lane, half of a register of pairs, or register of 32 bits, of
        both operands.
    across : bool
        Whether rows of A and columns of B may be neighbours in memory in place of steps of K.
    needs : str
        The feature, as LLVM names it, that a CPU must have; the architecture of a GPU: it or a
        later one, and exactly it where it ends in a letter. Empty: any.
    rate : str
        The type for which a GPU's description states the rate. On CPUs one instruction starts in a
        cycle in each unit for multiply-adds.
    adds : bool
        Whether it adds to sums itself; code adds what others give.
    """

    name: str
    intrinsic: str
    m: int
    n: int
    k: int
    a: str
    b: str
    accumulator: str
    held: Literal["lanes", "pairs", "tiles", "thread", "warp", "shared"]
    packed: int
    across: bool
    needs: str
    rate: str
    adds: bool = True

    def runs_on(self, arch: str) -> bool:
        """Whether a GPU of architecture ``arch`` has it."""
        if self.needs[-1:].isalpha():
            return arch == self.needs
        return not self.needs or _capability(arch) >= _capability(self.needs)

    def share_of_rate(self, arch: str) -> float:
        """The share of the stated rate that it reaches on a GPU of architecture ``arch``."""
        is_hopper = arch == WARPGROUP_ARCHITECTURE
        return WARP_SHARE if is_hopper and self.held == "warp" else 1.0


def _capability(arch: str) -> int:
    return int("".join(filter(str.isdigit, arch)))


_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "uint8": 1, "int16": 2}


def _vector(dtype: str, needs: str = "") -> MatrixInstruction:
    """A multiply-add of whole vectors, which LLVM makes of ``a * b + c``."""
    return MatrixInstruction(
        *("fma", "a * b + c", 1, LANES, 1, dtype, dtype, dtype),
        *("lanes", 1, True, needs, dtype),
    )


def _dot_product(
    types: tuple[str, str, str], name: str, intrinsic: str, needs: str, adds: bool = True
) -> MatrixInstruction:
    """Products of the first two types, as many as fill 32 bits, added to a lane of the third.

    Operands of a narrower second type are widened to the first.
    """
    a, b, accumulator = types
    k = 4 // _BYTES[a]
    return MatrixInstruction(
        *(name, intrinsic, 1, LANES, k, a, b, accumulator, "lanes", k, False, needs, a, adds)
    )


def _pairs(types: tuple[str, str, str], name: str, intrinsic: str, needs: str) -> MatrixInstruction:
    """Products of two rows and two columns of 64 bits, added to four sums: Arm's ``MMLA``."""
    a, b, accumulator = types
    k = 8 // _BYTES[a]
    return MatrixInstruction(
        *(name, intrinsic, 2, 2, k, a, b, accumulator, "pairs", k, False, needs, a)
    )


def _tile(a: str, b: str, accumulator: str, name: str, needs: str) -> MatrixInstruction:
    """Products of 16 rows of 64 bytes and 16 columns: Intel AMX."""
    k = 64 // _BYTES[a]
    return MatrixInstruction(
        *(name, f"llvm.x86.{name}", 16, 16, k, a, b, accumulator, "tiles", 4 // _BYTES[a]),
        *(False, needs, a),
    )


_INTEGER_SUMS = ("uint8", "int8", "int32")
_SIGNED_SUMS = ("int8", "int8", "int32")
_WIDENED_SUMS = ("int16", "int8", "int32")
_BFLOAT16_SUMS = ("bfloat16", "bfloat16", "float32")

CPU_INSTRUCTIONS = (
    _vector("float32"),
    _vector("float64"),
    # VFMADD...PH, and FMLA of half precision.
    _vector("float16", "avx512fp16"),
    _vector("float16", "fullfp16"),
    # Before those that add half as many products, which take sums of half as many steps, too.
    _pairs(_INTEGER_SUMS, "usmmla", "llvm.aarch64.neon.usmmla.v4i32.v16i8", "i8mm"),
    _pairs(_SIGNED_SUMS, "smmla", "llvm.aarch64.neon.smmla.v4i32.v16i8", "i8mm"),
    _pairs(_BFLOAT16_SUMS, "bfmmla", "llvm.aarch64.neon.bfmmla", "bf16"),
    # Four neighbouring steps in each lane; the other way round than in manuals of Intel, operand A
    # is the one without sign.
    _dot_product(_INTEGER_SUMS, "vpdpbusd", "llvm.x86.avx512.vpdpbusd.{bits}", "avx512vnni"),
    _dot_product(_INTEGER_SUMS, "vpdpbusd", "llvm.x86.avx512.vpdpbusd.{bits}", "avxvnni"),
    _dot_product(_INTEGER_SUMS, "usdot", "llvm.aarch64.neon.usdot.v4i32.v16i8", "i8mm"),
    _dot_product(_SIGNED_SUMS, "sdot", "llvm.aarch64.neon.sdot.v4i32.v16i8", "dotprod"),
    # The last of 256 bits; what has longer vectors multiplies as many float32 at once.
    _dot_product(_WIDENED_SUMS, "vpmaddwd", "llvm.x86.avx2.pmadd.wd", "avx2", adds=False),
    _dot_product(_BFLOAT16_SUMS, "vdpbf16ps", "llvm.x86.avx512bf16.dpbf16ps.{bits}", "avx512bf16"),
    _dot_product(_BFLOAT16_SUMS, "bfdot", "llvm.aarch64.neon.bfdot.v4f32.v8bf16", "bf16"),
)

SATURATING_INSTRUCTION = _dot_product(
    _INTEGER_SUMS, "vpmaddubsw", "llvm.x86.avx2.pmadd.ub.sw", "avx2", adds=False
)
"""Of CPUs without another for bytes: it adds two products in 16 bits, which saturate, so that one
operand must be of 7 bits at most. ``vpmaddwd`` then adds two of these sums to a lane.
"""


def _thread(dtype: str) -> MatrixInstruction:
    """A multiply-add of each thread."""
    return MatrixInstruction(
        *("fma.rn", "a * b + c", 1, 1, 1, dtype, dtype, dtype, "thread", 1, True, "", dtype)
    )


# Bytes of the steps of K of one instruction of tensor cores, and of a register.
_DEPTH_BYTES, _REGISTER_BYTES = 32, 4

_INTEGERS = ("int8", "uint8")


def _tensor_cores(
    name: str, intrinsic: str, m: int, n: int, types: tuple[str, str], needs: str
) -> MatrixInstruction:
    """``mma.sync`` or ``wgmma``; of float32 tensor cores take tf32: the upper 19 bits."""
    a, b = types
    width = _BYTES[a]
    return MatrixInstruction(
        *(name, intrinsic, m, n, _DEPTH_BYTES // width, a, b),
        "int32" if a in _INTEGERS else "float32",
        "shared" if name.startswith("wgmma") else "warp",
        _REGISTER_BYTES // width,
        # PTX ISA, "ldmatrix" and "wgmma.mma_async": elements of 16 bits can be transposed.
        width == 2,
        needs,
        "tf32" if a == "float32" else a,
    )


TILE_INSTRUCTIONS = (
    _tile("uint8", "int8", "int32", "tdpbusd", "amx-int8"),
    _tile("int8", "int8", "int32", "tdpbssd", "amx-int8"),
    _tile("bfloat16", "bfloat16", "float32", "tdpbf16ps", "amx-bf16"),
)
"""Of CPUs, beside those of vectors."""

LEAST_TILE_DEPTH = 16
"""Neighbouring steps of a sum in the data, at least, for tile registers: fewer are copied into rows
at the cost of as many.
"""

THREAD_INSTRUCTIONS = {dtype: _thread(dtype) for dtype in ("float32", "float64")}
"""By the operands' type."""

WARP_INSTRUCTIONS = {
    dtype: _tensor_cores("mma.sync", "tirx.ptx_legacy.mma", 16, 8, (dtype, dtype), "sm_80")
    for dtype in ("float16", "float32", "bfloat16", "int8", "uint8")
}
"""By the operands' type: PTX ISA, "Matrix fragments for mma.m16n8k16" and its like."""

WARPGROUP_INSTRUCTIONS = {
    types: _tensor_cores("wgmma.mma_async", "asm", 64, 256, types, WARPGROUP_ARCHITECTURE)
    for types in (
        *((dtype, dtype) for dtype in ("float16", "bfloat16", "float32")),
        *((a, b) for a in _INTEGERS for b in _INTEGERS),
    )
}
"""By the types of A and B: PTX ISA, "wgmma.mma_async"."""

# What TVM's dlight rules make of products of float16.
_FRAGMENTS = MatrixInstruction(
    *("wmma.mma", "tirx.tvm_mma_sync", 16, 16, 16, "float16", "float16", "float32"),
    *("warp", 2, True, "sm_70", "float16"),
)

CUDA_INSTRUCTIONS = (
    *THREAD_INSTRUCTIONS.values(),
    *WARP_INSTRUCTIONS.values(),
    *WARPGROUP_INSTRUCTIONS.values(),
    _FRAGMENTS,
)

# What instructions call the types of their operands.
PTX_TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32", "int8": "s8", "uint8": "u8"}
MMA_TYPES = {**PTX_TYPES, "float16": "fp16", "int8": "int8", "uint8": "uint8"}
"""The same in TVM's ``tirx.ptx_legacy.mma``."""

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_GROUP = re.compile(r"wgmma\.mma_async\S*\.m(\d+)n(\d+)k(\d+)\.\w+\.(\w+)\.(\w+)")


def cpu_instructions(
    dtype: str, bits: int, features: Iterable[str]
) -> tuple[MatrixInstruction, ...]:
    """What sums of products of ``dtype``, of so many bits, become on a CPU with ``features``: the
    fastest first, which may ask for more steps of the sum.

    Types without a row are widened: up to 32 bits to float32, or integers that are as fast.
    """
    fitting = [row for row in CPU_INSTRUCTIONS if not row.needs or row.needs in features]
    own = tuple(row for row in fitting if row.a == dtype)
    wide = "float32" if bits <= 32 else "float64"
    return own or tuple(row for row in fitting if row.a == wide)


def has_rate(rate: str, arch: str) -> bool:
    """Whether a GPU of architecture ``arch`` has an instruction of this rate that code uses."""
    return any(row.rate == rate and row.runs_on(arch) for row in CUDA_INSTRUCTIONS)


def read_call(name: str, words: Iterable[str]) -> tuple[MatrixInstruction, int] | None:
    """The instruction of a call in TIR, and its columns; None for any other call.

    ``name`` is the operator's, ``words`` are those of its arguments that are text.
    """
    texts = list(words)
    if name == _FRAGMENTS.intrinsic:
        return _FRAGMENTS, _FRAGMENTS.n
    for text in texts:
        if group := _GROUP.search(text):
            a, b = (_type_of(PTX_TYPES, [word]) for word in group.groups()[3:])
            return WARPGROUP_INSTRUCTIONS[a, b], int(group[2])
        if shape := _SHAPE.fullmatch(text):
            return WARP_INSTRUCTIONS[_type_of(MMA_TYPES, texts)], int(shape[2])
    return None


def _type_of(names: dict[str, str], words: list[str]) -> str:
    return next(dtype for dtype, name in names.items() if name in words)
