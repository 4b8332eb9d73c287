"""Instructions of warp groups that only attention uses, as calls in TIR.

The others are in ``warp_groups/warp_group_instructions.py``. Names in brackets are chapters of the
PTX ISA 8.5.
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.device_functions import call_statement
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_instructions import DEPTH

PTX_TYPES = {"float16": "f16", "bfloat16": "bf16"}

OPERAND_REGISTERS = 4
"""Registers of 32 bits that hold a thread's part of 64 x 16 elements of A."""

# Number 0 is the barrier of all threads: [bar].
_FIRST_TURN = 1


def round_scores(weights: Any, scores: Any, keys: int, dtype: str) -> tirx.Stmt:
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
    results: Any, weights: Any, first: int, b: Any, add: Any, columns: int, dtype: str
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


def settle_weights(weights: Any, keys: int) -> tirx.Stmt:
    """Keeps the compiler from moving uses of ``weights`` across this place."""
    body = (
        "#pragma unroll\n"
        f'  for (int i = 0; i < {keys // 4}; ++i) asm volatile("" : "+r"(w[i]) :: "memory");'
    )
    return call_statement(f"tvm_ext_settle_weights_{keys}", "unsigned* w", body, weights)


def await_turn(group: Any) -> tirx.Stmt:
    """Waits until ``pass_turn`` was called for this warp group; [bar]."""
    return _turn("sync", group)


def pass_turn(group: Any) -> tirx.Stmt:
    """Says that it is the turn of another warp group; [bar]."""
    return _turn("arrive", group)


def _turn(kind: str, group: Any) -> tirx.Stmt:
    # Two warp groups: the one that waits, and the one before it.
    asm = f'asm volatile("bar.{kind} %0, 256;" :: "r"(number) : "memory");'
    number = group + tirx.const(_FIRST_TURN, "int32")
    return call_statement(f"tvm_ext_turn_{kind}", "int number", asm, number)
