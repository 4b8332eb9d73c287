"""Kernels whose code MLIR generates, in programs of TVM.

Before: ``for i in T.parallel(n): ...``
After:  ``import_llvm("define void @kernel_mlir(...) { ... }"): call kernel_mlir(A.data, n)``

MLIR lowers the scheduled loops to LLVM's text. TVM's LLVM reads it and compiles it with the rest of
the program, for the same machine: a saved program needs no MLIR.
"""

import hashlib
import re
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from torch_mlir import ir
from torch_mlir.dialects import llvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.mlir import MlirError
from tvm_ext.mlir.from_tensorir import convert_scheduled, is_buffer
from tvm_ext.mlir.kept_modules import kernel_at, without_module
from tvm_ext.mlir.lowering import lower_to
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.tir_schedules.analysis.in_place import keeps_module

# What TVM's code generator reads LLVM's text from.
_IMPORT = "pragma_import_llvm"

# The function's name in MLIR, until it is known what it computes.
_FUNCTION = "kernel_of_mlir"
_DIGITS = 16


def with_mlir_code(kernel: tirx.PrimFunc, name: str, machine: MachineDescription) -> tirx.PrimFunc:
    """A kernel with the same parameters that calls MLIR's code for it.

    Parameters
    ----------
    kernel : tirx.PrimFunc
        The scheduled kernel.
    name : str
        Its name, which the name of the function that MLIR generates begins with.
    machine : MachineDescription
        What it is scheduled for.

    Raises
    ------
    NotApplicable
        The kernel has no form in MLIR, or a pass of MLIR fails on it.
    """
    converted = convert_scheduled(kernel, _FUNCTION, machine)
    _take_plain_parameters(converted.module)
    try:
        lower_to(converted.module, "llvm")
    except MlirError as error:
        raise NotApplicable(str(error)) from error
    return _calling(kernel, name, _FUNCTION, converted.module)


def with_kept_code(kernel: tirx.PrimFunc, name: str) -> tirx.PrimFunc:
    """A kernel that keeps a module, as one that calls the code of the module.

    Raises
    ------
    NotApplicable
        A pass of MLIR fails on the module.
    """
    with ir.Context() as context:
        try:
            found = kernel_at(kernel, name, "llvm", context)
        except MlirError as error:
            raise NotApplicable(str(error)) from error
        for op in list(found.module.body.operations):
            if ir.StringAttr(op.attributes["sym_name"]).value.startswith(_INTERFACE):
                op.operation.erase()
        return _calling(without_module(kernel), name, found.name, found.module)


def with_all_kept_code(mod: tvm.IRModule) -> tvm.IRModule:
    """A module of kernels with the code of those that keep a module of MLIR.

    Raises
    ------
    NotApplicable
        A pass of MLIR fails on one.
    """
    changed = {
        variable: with_kept_code(func, str(variable.name_hint))
        for variable, func in mod.functions.items()
        if isinstance(func, tirx.PrimFunc) and keeps_module(func)
    }
    return with_functions(mod, changed)


# What ExecutionEngine calls, and no program of TVM.
_INTERFACE = "_mlir_ciface_"


def _take_plain_parameters(module: ir.Module) -> None:
    """Has the functions called by their plain parameters, and not as ExecutionEngine calls."""
    for op in module.body.operations:
        del op.attributes["llvm.emit_c_interface"]


def _calling(kernel: tirx.PrimFunc, name: str, function: str, module: ir.Module) -> tirx.PrimFunc:
    """The kernel as a call of a function of a module at stage llvm."""
    text = _as_tvm_reads(llvm.translate_module_to_llvmir(module.operation))
    # Programs for several sizes are linked together, and may have kernels of the same name: what
    # has the same name computes the same, and the linker takes one of them.
    symbol = f"{name}_{hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]}"
    text = text.replace(f"define void @{function}(", f"define weak_odr void @{symbol}(")
    arguments = [one for param in kernel.params for one in _arguments(param)]
    call = tirx.Evaluate(tirx.call_extern("void", symbol, *arguments))
    body = tirx.AttrStmt(tirx.const(0, "int32"), _IMPORT, tvm.ir.StringImm(text), call)
    return kernel.with_body(body)


# MLIR's LLVM is newer than TVM's, and writes floating-point numbers by their own bits, f0x3F800000,
# or as +inf, -inf, +qnan, +nan(0x1) and +snan(0x1), or as decimals that are rounded to the type.
_BITS = re.compile(r"f0x([0-9A-F]+)")
_NARROW = re.compile(r"\b(half|bfloat)\b")
_NO_NUMBER = re.compile(r"(?<![\w.])([+-])(inf|qnan|nan|snan)\b(?:\(0x([0-9A-Fa-f]+)\))?")
_DECIMAL = re.compile(r"(?<![\w.])-?\d+\.\d+e[+-]\d+")
_TYPE = re.compile(r"\b(half|bfloat|float|double)\b")

# Bits of the exponent and of the mantissa.
_PARTS = {"half": (5, 10), "bfloat": (8, 7), "float": (8, 23), "double": (11, 52)}


def _as_tvm_reads(text: str) -> str:
    """LLVM's text with numbers as older releases read them.

    These write a float by the bits of the double of its value, and mark the narrower types.
    """
    lines = (_BITS.sub(_older, line) for line in text.splitlines())
    lines = (_DECIMAL.sub(_rounded, line) for line in lines)
    return "\n".join(_NO_NUMBER.sub(_older_no_number, line) for line in lines)


def _rounded(found: re.Match[str]) -> str:
    """A decimal by the bits of the nearest number of its type, which has to be exact for TVM's."""
    types = _TYPE.findall(found.string[: found.start()])
    if not types or types[-1] == "double":
        return found[0]
    value = np.dtype(_ROUNDS[types[-1]]).type(float(found[0]))
    if types[-1] == "float":
        return "0x" + struct.pack(">d", float(value)).hex().upper()
    return f"0x{'H' if types[-1] == 'half' else 'R'}{int(value.view(np.uint16)):04X}"


_ROUNDS = {"half": np.float16, "bfloat": ml_dtypes.bfloat16, "float": np.float32}


def _older_no_number(found: re.Match[str]) -> str:
    """An infinity, or what is no number, by its bits; itself where no type stands before it."""
    types = _TYPE.findall(found.string[: found.start()])
    if not types:
        return found[0]
    exponent, mantissa = _PARTS[types[-1]]
    payload = int(found[3] or "0", 16)
    if found[2] in ("qnan", "nan"):
        payload |= 1 << (mantissa - 1)
    if types[-1] == "float":
        # A float is written as a double, whose mantissa is longer.
        payload <<= _PARTS["double"][1] - mantissa
        exponent, mantissa = _PARTS["double"]
    bits = (int(found[1] == "-") << exponent | (1 << exponent) - 1) << mantissa | payload
    mark = {"half": "H", "bfloat": "R"}.get(types[-1], "")
    return f"0x{mark}{bits:0{(1 + exponent + mantissa) // 4}X}"


def _older(found: re.Match[str]) -> str:
    digits = found[1]
    if len(digits) == 4:
        types = _NARROW.findall(found.string[: found.start()])
        return ("0xR" if types and types[-1] == "bfloat" else "0xH") + digits
    if len(digits) == 8:
        value = struct.unpack(">f", bytes.fromhex(digits))[0]
        return "0x" + struct.pack(">d", value).hex().upper()
    return f"0x{digits}"


def _arguments(param: Any) -> Iterator[Any]:
    """What a parameter is for MLIR's code: of an array the parts of its descriptor.

    These are where it was allocated, where it begins, an offset, and its sizes and strides.
    """
    if not is_buffer(param):
        yield param
        return
    begin = tirx.address_of(tirx.BufferLoad(param, [tirx.const(0, "int64")] * len(param.shape)))
    yield from (begin, begin, tirx.const(0, "int64"))
    sizes = [size.astype("int64") for size in param.shape]
    yield from sizes
    strides: list[Any] = []
    step: Any = tirx.const(1, "int64")
    for size in reversed(sizes):
        strides.insert(0, step)
        step = step * size
    yield from strides
