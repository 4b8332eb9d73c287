"""Counts what one call of a kernel does, as expressions of the sizes that a run decides."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.analysis import estimate_tir_flops
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.hardware.cost_model import CostModel, Work
from tvm_ext.report.formulas import FormulaError, formula_of_tvm, identifier, polynomial
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.statements import sizes_at, with_sizes

# A size that no product or division folds.
_SOME_SIZE = 11


@dataclass(frozen=True)
class KernelWork:
    """What a call of a kernel does.

    Attributes
    ----------
    flops, bytes : Expr
        Arithmetic operations, and bytes of all parameters, each counted once; int64, of the
        kernel's sizes. Of a tensor that is read at places that the data say (an embedding's
        table), as many bytes as are read.
    dtype : str
        As of `Work`.
    """

    flops: tvm.ir.Expr
    bytes: tvm.ir.Expr
    dtype: str

    def at(self, values: Mapping[Any, Any]) -> Work | None:
        """The numbers for values of the sizes; None where these do not tell all."""
        flops, nbytes = (with_values(one, values) for one in (self.flops, self.bytes))
        if not isinstance(flops, tirx.IntImm) or not isinstance(nbytes, tirx.IntImm):
            return None
        return Work(float(int(flops)), float(int(nbytes)), self.dtype)


# As many kernels as a large model has: a memory limit, and two parts of the report ask.
@lru_cache(maxsize=256)
def kernel_work(func: tirx.PrimFunc) -> KernelWork:
    """What a call of a kernel does."""
    flops = _flops_or_nothing(func)
    nbytes = reduce(lambda total, one: total + one, _parameter_bytes(func), _number(0))
    return KernelWork(_simplified(flops), _simplified(nbytes), kernel_dtype(func))


def work_of_call(
    func: tirx.PrimFunc, arguments: Sequence[tuple[int, ...] | int | None]
) -> Work | None:
    """What a call with arguments of these shapes, or these numbers, does; None if they leave some
    size open.
    """
    return kernel_work(func).at(sizes_at(func, arguments))


def kernel_seconds(func: tirx.PrimFunc, cost_model: CostModel) -> float:
    """Modelled time of one call, whatever its schedule; sizes that a run decides count as 1."""
    work = kernel_work(func).at({size: _number(1, size) for size in sizes_of(func)})
    return cost_model.seconds(work) if work is not None else 0.0


def has_known_sizes(func: tirx.PrimFunc) -> bool:
    """Whether all tensors that a kernel takes have sizes that no run decides."""
    shapes = [param.shape for param in func.params if hasattr(param, "shape")]
    return all(isinstance(_simplified(size), tirx.IntImm) for shape in shapes for size in shape)


def sizes_of(func: tirx.PrimFunc) -> dict[tirx.Var, tuple[int, int]]:
    """The sizes that a run decides: the first argument that has each and its axis there, -1 for an
    argument that is the number itself.
    """
    found: dict[tirx.Var, tuple[int, int]] = {}
    for place, param in enumerate(func.params):
        axes = list(enumerate(param.shape)) if hasattr(param, "shape") else [(-1, param)]
        for axis, size in axes:
            if isinstance(size, tirx.Var) and isinstance(size.ty, tvm.ir.PrimType):
                found.setdefault(size, (place, axis))
    return found


def named_sizes(func: tirx.PrimFunc) -> dict[tirx.Var, str]:
    """Names for ``sizes_of`` in formulas, each another one."""
    names: dict[tirx.Var, str] = {}
    for size in sizes_of(func):
        name = identifier(str(size.name))
        names[size] = name if name not in names.values() else f"{name}_{len(names)}"
    return names


# What a size is called where TVM writes an expression down.
_SHOWN = re.compile(r"size_\d+_")


def formula(expression: tvm.ir.Expr, names: Mapping[tirx.Var, str]) -> str:
    """A number or condition as a formula; empty where it has none, or has sizes without a name."""
    if not set(tirx.analysis.undefined_vars(expression)) <= set(names):
        return ""
    # Names that TVM leaves as they are, unlike those of types.
    shown = {size: tirx.Var(f"size_{i}_", size.ty) for i, size in enumerate(names)}
    try:
        text = formula_of_tvm(str(_substituted(expression, shown)))
    except FormulaError:
        return ""
    own = dict(zip((str(size.name) for size in shown.values()), names.values(), strict=True))
    text = _SHOWN.sub(lambda found: own[found[0]], text)
    is_condition = str(expression.ty) == "bool"
    return text if is_condition else str(polynomial(text))


def with_values(expression: tvm.ir.Expr, values: Mapping[Any, Any]) -> tvm.ir.Expr:
    """An expression with others for its sizes."""
    return _simplified(_substituted(expression, values))


def _substituted(expression: Any, values: Mapping[Any, Any]) -> Any:
    def value(size: tvm.ir.Var) -> Any:
        found = values.get(size)
        return size if found is None else found.astype(str(size.ty))

    return structural_map(expression, (tirx.Var, value))


def _simplified(expression: Any) -> Any:
    return Analyzer().simplify(expression)


def _number(value: float, like: Any = None) -> tirx.IntImm:
    return tirx.const(int(value), "int64" if like is None else str(like.ty))


# Operations: TVM counts what has known sizes, and loops of others multiply it.


def _flops_or_nothing(func: tirx.PrimFunc) -> Any:
    """Operations; 0 where loops whose turns the data decide, or extern calls, hide them."""
    # Numbers for sizes within statements: what is computed of these alone is no operation.
    some = {size: _number(_SOME_SIZE, size) for size in sizes_of(func)}
    try:
        found = _flops(func.body, some)
    except (tvm.error.InternalError, RuntimeError, ValueError, TypeError):
        return _number(0)
    is_known = set(tirx.analysis.undefined_vars(found)) <= set(sizes_of(func))
    return found if is_known else _number(0)


def _flops(statement: Any, some: Mapping[Any, Any]) -> Any:
    if all(isinstance(loop.extent, tirx.IntImm) for loop in nodes(statement, tirx.For)):
        alone = with_sizes(tirx.PrimFunc([], statement), some)
        # TVM counts loops down, which sorts for GPUs have, as less than nothing.
        return _number(max(0.0, estimate_tir_flops(tvm.IRModule({"main": alone}))))
    match statement:
        case tirx.For():
            return statement.extent.astype("int64") * _flops(statement.body, some)
        case tirx.SeqStmt():
            return reduce(lambda total, one: total + _flops(one, some), statement.seq, _number(0))
        case tirx.IfThenElse():
            ways = [statement.then_case, statement.else_case]
            found = [_flops(way, some) for way in ways if way is not None]
            condition = _flops(tirx.Evaluate(statement.condition), some)
            return condition + reduce(tirx.max, found)
        case s_tir.SBlockRealize():
            start = statement.block.init
            body = _flops(statement.block.body, some)
            return body if start is None else body + _flops(start, some)
        case tirx.AttrStmt():
            return _flops(statement.body, some)
        case _:
            raise ValueError(f"no number of operations is known of {type(statement).__name__}")


# Bytes.


def _parameter_bytes(func: tirx.PrimFunc) -> list[Any]:
    gathered = _gathered_elements(func)
    found = []
    for param in func.params:
        if not hasattr(param, "shape"):
            continue
        elements = _product(param.shape)
        read = gathered.get(str(param.name))
        if read is not None:
            elements = tirx.min(elements, read)
        bits = tvm.DataType(str(param.dtype)).bits
        found.append(tirx.floordiv(elements * _number(bits), _number(8)))
    return found


def _gathered_elements(func: tirx.PrimFunc) -> dict[str, Any]:
    """By name of a parameter that is read at indices that are themselves read, how many reads."""
    found: dict[str, Any] = {}
    for block in nodes(func.body, s_tir.SBlock):
        iterations = _product([axis.dom.extent for axis in block.iter_vars])
        for store in nodes(block.body, tirx.BufferStore) if len(block.iter_vars) else ():
            for load in nodes(store.value, tvm.ir.TensorLoad):
                if any(nodes(index, tvm.ir.TensorLoad) for index in load.indices):
                    name = str(load.source.name)
                    found[name] = found.get(name, _number(0)) + iterations
    return found


def _product(extents: Any) -> Any:
    return math.prod((extent.astype("int64") for extent in extents), start=_number(1))


# Types.


def kernel_dtype(func: tirx.PrimFunc) -> str:
    """Element type that the arithmetic goes at the rate of: that of the result, the last parameter;
    that of narrow operands whose products are summed; float32 when there is no buffer.
    """
    last = func.params[-1] if len(func.params) else None
    types = {str(param.dtype) for param in func.params if hasattr(param, "shape")}
    may_be_narrow = not types.isdisjoint({"int8", "bfloat16"})
    products = map(_narrow_type, nodes(func.body, tirx.Mul)) if may_be_narrow else ()
    narrow = next(filter(None, products), None)
    if narrow is not None:
        return narrow
    return str(last.dtype) if last is not None and hasattr(last, "shape") else "float32"


def _narrow_type(product: tirx.Mul) -> str | None:
    """The type of the data of a product that instructions for several may add up; None for others.

    Of 8-bit integers it is that beside int8.
    """
    sides = (product.a, product.b)
    types = sorted(str(side.value.ty) for side in sides if isinstance(side, tirx.Cast))
    match str(product.ty), types:
        case ("int32", ["int8", "uint8" | "int8"]) | ("float32", ["bfloat16", "bfloat16"]):
            return types[1]
        case _:
            return None
