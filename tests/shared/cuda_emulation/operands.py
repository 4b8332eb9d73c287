"""Operands of PTX instructions as C++ expressions."""

import re
from collections.abc import Callable, Sequence

Operands = Sequence[str]
Translate = Callable[[re.Match[str], Operands, int], str]
Rule = tuple[str, Translate]
"""A pattern of opcodes, and what makes the C++ statement of match, operands and line."""

C_TYPES = {
    "b16": "uint16_t", "u16": "uint16_t", "s16": "int16_t", "f16": "uint16_t",
    "b32": "uint32_t", "u32": "uint32_t", "s32": "int32_t", "f32": "float",
    "b64": "uint64_t", "u64": "uint64_t", "s64": "int64_t", "f64": "double",
    "b8": "uint8_t", "u8": "uint8_t", "s8": "int8_t", "pred": "bool",
}  # fmt: skip
ELEMENTS = {
    "f16": "kF16", "bf16": "kBF16", "tf32": "kTF32", "s8": "kS8", "u8": "kU8", "f32": "kF32",
    "s32": "kS32",
}  # fmt: skip
FLOATS = "f16|bf16|tf32|f32|s32|s8|u8"


def listed(operand: str) -> list[str]:
    """The registers of a vector operand ``{a, b}``, or the only one."""
    return [part.strip() for part in operand.strip().strip("{}").split(",")]


def address(operand: str) -> str:
    """The value of ``[register]`` or ``[register+offset]``."""
    inner = operand.strip().strip("[]").strip()
    base, plus, offset = inner.partition("+")
    return f"(emu::ptx::address({base.strip()}){plus}{offset})"


def array(name: str, registers: Sequence[str]) -> str:
    """Declares the bits of some registers as an array."""
    bits = ", ".join(f"emu::ptx::bits({register})" for register in registers)
    return f"uint32_t {name}[] = {{{bits}}};"


def put(name: str, registers: Sequence[str]) -> str:
    """Sets registers to the bits of an array."""
    return " ".join(f"emu::ptx::put({reg}, {name}[{i}]);" for i, reg in enumerate(registers))
