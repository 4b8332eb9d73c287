"""A function of the host that calls kernels one after the other, with tensors on its stack."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import relax, tirx

from tvm_ext.tir_schedules.cpu.tensor_start import NO_OPERATOR

CALLS_KERNELS = "tvm_ext.calls_kernels"
"""On a function that does nothing but call kernels, which LLVM need not optimise."""


def calls_kernels(func: tirx.PrimFunc) -> bool:
    """Whether a function does nothing but call kernels."""
    return func.attrs is not None and CALLS_KERNELS in func.attrs


# What TVM puts in front of a kernel's name in an object.
SYMBOL_PREFIX = "__tvm_ffi_"

# Of a DLTensor and of an array of numbers: ``TVMStructFieldKind`` in TVM's tirx/builtin.h.
_ADDRESS, _DATA, _SHAPE, _STRIDES, _DIMENSIONS = range(5)
_TYPE_CODE, _TYPE_BITS, _TYPE_LANES, _BYTE_OFFSET, _DEVICE_ID, _DEVICE_TYPE = range(5, 11)
_NUMBER = 17
_CPU = 1

Tensor: TypeAlias = relax.Var | tvm.ir.GenericConst


@dataclass(frozen=True, eq=False)
class TensorPart:
    """A tensor that lies within one of the program's; another object is another tensor.

    Attributes
    ----------
    base : relax.Var or tvm.ir.GenericConst
        The program's tensor.
    offset : Expr
        Where it begins in that, in bytes.
    shape : sequence of Expr
        Its sizes.
    dtype : str
        Of its elements.
    """

    base: Tensor
    offset: tvm.ir.Expr
    shape: tuple[tvm.ir.Expr, ...]
    dtype: str


Argument: TypeAlias = "Tensor | TensorPart | tvm.ir.Expr"


@dataclass(frozen=True)
class KernelArguments:
    """A kernel with what it is called with: tensors of the program, parts of these, and sizes."""

    kernel: tvm.ir.GlobalVar
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class CallsOfKernels:
    """A function that calls kernels, and what the program has to call it with."""

    func: tirx.PrimFunc
    arguments: list[relax.Expr]


def calls_of_kernels(calls: Sequence[KernelArguments]) -> CallsOfKernels:
    """A function that makes these calls in their order."""
    return _Builder().built(calls)


class _Builder:
    def __init__(self) -> None:
        # By the addresses of what the program gives.
        self._tensors: dict[int, tuple[Tensor, tirx.Var]] = {}
        self._sizes: dict[int, tuple[relax.Var, tirx.Var]] = {}
        self._statements: list[tirx.Stmt] = []
        self._laid_out: dict[TensorPart, tirx.Expr] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._numbers = 0
        self._arrays = tirx.Var("tensors", "handle")
        self._shape_numbers = tirx.Var("shapes", "handle")

    def built(self, calls: Sequence[KernelArguments]) -> CallsOfKernels:
        for call in calls:
            arguments = [self._argument(one) for one in call.arguments]
            called = tvm.ir.Call(call.kernel, arguments, ret_ty="int32")
            self._statements.append(tirx.Evaluate(called))
        body = tirx.SeqStmt(
            [
                tirx.Bind(self._arrays, _on_stack("array", len(self._laid_out))),
                tirx.Bind(self._shape_numbers, _on_stack("shape", self._numbers)),
                *self._statements,
            ]
        )
        made = [*self._tensors.values(), *self._sizes.values()]
        func = tirx.PrimFunc([var for _, var in made], body).with_attrs(
            {"tirx.is_scheduled": True, NO_OPERATOR: True, CALLS_KERNELS: True}
        )
        return CallsOfKernels(func, [given for given, _ in made])

    def _argument(self, argument: Argument) -> tirx.Expr:
        if isinstance(argument, TensorPart):
            return self._part(argument)
        if isinstance(argument.ty, relax.TensorType):
            return _get("handle", self._tensor(argument), 0, _ADDRESS)
        return self._size(argument)

    def _tensor(self, tensor: Tensor) -> tirx.Var:
        key = hash(tensor)
        if key not in self._tensors:
            self._tensors[key] = tensor, tirx.Var(f"tensor_{len(self._tensors)}", "handle")
        return self._tensors[key][1]

    def _size(self, size: tvm.ir.Expr) -> tirx.Expr:
        """The size in terms of the function's own parameters."""

        def own(variable: relax.Var) -> tirx.Var:
            key = hash(variable)
            if key not in self._sizes:
                self._sizes[key] = variable, tirx.Var(str(variable.name), "int64")
            return self._sizes[key][1]

        return tvm_ffi.structural_map(size, (tirx.Var, own))

    def _part(self, part: TensorPart) -> tirx.Expr:
        """The address of a tensor on the stack, which is laid out ahead of its first use."""
        if part not in self._laid_out:
            place = len(self._laid_out)
            self._laid_out[part] = _get("handle", self._arrays, place, _ADDRESS)
            self._lay_out(part, place)
        return self._laid_out[part]

    def _lay_out(self, part: TensorPart, place: int) -> None:
        base = self._tensor(part.base)
        data = _get("handle", base, 0, _DATA)
        begin = _get("uint64", base, 0, _BYTE_OFFSET).astype("int64") + self._size(part.offset)
        dtype = tvm_ffi.dtype(part.dtype)
        shape = tirx.handle_add_byte_offset(self._shape_numbers, 8 * self._shape(part.shape))
        fields = {
            _DATA: tirx.handle_add_byte_offset(data, begin),
            _SHAPE: shape,
            _STRIDES: _null(),
            _DIMENSIONS: tirx.const(len(part.shape), "int32"),
            _TYPE_CODE: tirx.const(int(dtype.type_code), "uint8"),
            _TYPE_BITS: tirx.const(int(dtype.bits), "uint8"),
            _TYPE_LANES: tirx.const(int(dtype.lanes), "uint16"),
            _BYTE_OFFSET: tirx.const(0, "uint64"),
            _DEVICE_ID: tirx.const(0, "int32"),
            _DEVICE_TYPE: tirx.const(_CPU, "int32"),
        }
        for kind, value in fields.items():
            self._set(self._arrays, place, kind, value)

    def _shape(self, shape: tuple[tvm.ir.Expr, ...]) -> int:
        """Where the sizes of a tensor begin among all of them."""
        key = tuple(-int(n) - 1 if isinstance(n, tirx.IntImm) else hash(n) for n in shape)
        if key not in self._shapes:
            self._shapes[key] = self._numbers
            for size in shape:
                number = self._size(size).astype("int64")
                self._set(self._shape_numbers, self._numbers, _NUMBER, number)
                self._numbers += 1
        return self._shapes[key]

    def _set(self, array: tirx.Var, place: int, kind: int, value: tirx.Expr) -> None:
        self._statements.append(tirx.Evaluate(tirx.tvm_struct_set(array, place, kind, value)))


def _get(dtype: str, array: tirx.Var, place: int, kind: int) -> tirx.Expr:
    return tirx.call_intrin(dtype, "tirx.tvm_struct_get", array, place, kind)


def _on_stack(kind: str, count: int) -> tirx.Expr:
    return tirx.call_intrin("handle", "tirx.tvm_stack_alloca", kind, max(count, 1))


def with_symbols(func: tirx.PrimFunc, mod: tvm.IRModule) -> tirx.PrimFunc:
    """The function with kernels called by their names, which may lie in other objects.

    Of a kernel in another object TVM declares the name anew at every call, and without its prefix,
    unless it is known. So there is a first call of each by its full name, which never runs.
    """
    names: dict[str, None] = {}

    def named(call: tvm.ir.Call) -> tvm.ir.Call:
        if not isinstance(call.op, tvm.ir.GlobalVar):
            return call
        symbol = str(mod[call.op].attrs["global_symbol"])
        names[symbol] = None
        return tirx.call_cpacked(symbol, *call.args)

    tensors, shapes, *statements = tvm_ffi.structural_map(func.body, (tvm.ir.Call, named)).seq
    nothing = _null()
    never = tirx.isnullptr(tensors.var)
    first = [
        tirx.call_extern("int32", f"{SYMBOL_PREFIX}{name}", nothing, nothing, 0, nothing)
        for name in names
    ]
    declared = [tirx.IfThenElse(never, tirx.Evaluate(call), None) for call in first]
    return func.with_body(tirx.SeqStmt([tensors, shapes, *declared, *statements]))


def _null() -> tirx.Expr:
    return tirx.reinterpret("handle", tirx.const(0, "uint64"))
