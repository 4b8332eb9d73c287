"""What kernels are written anew with: sequences, blocks, stack arrays, flat views of buffers."""

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm.tirx.buffer import buffer_data
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    elements,
    flat_address,
    is_compact,
    is_conditional,
    nodes,
)


def sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    """One statement after the other, as flat as TVM wants it."""
    flat: list[tirx.Stmt] = []
    for statement in statements:
        # Not "+=": TVM's arrays take that over, and copy the whole list each time.
        flat.extend(statement.seq if isinstance(statement, tirx.SeqStmt) else [statement])
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def changed_block(block: s_tir.SBlock, **changes: Any) -> s_tir.SBlock:
    """``block`` with other fields: ``reads``, ``body``, ``alloc_buffers`` and the like."""
    names = ["iter_vars", "reads", "writes", "name_hint", "body", "init"]
    names += ["alloc_buffers", "match_buffers", "annotations"]
    return s_tir.SBlock(*(changes.get(name, getattr(block, name)) for name in names))


def changed_loop(loop: tirx.For, **changes: Any) -> tirx.For:
    """``loop`` with other fields: ``body``, ``annotations`` and the like."""
    names = ("loop_var", "min", "extent", "kind", "body", "thread_binding", "annotations")
    return tirx.For(*(changes.get(name, getattr(loop, name)) for name in names))


def where_long(
    extents: Sequence[tvm.ir.Expr],
    least: int,
    code: tirx.Stmt,
    other: tirx.Stmt,
    also: Sequence[tvm.ir.Expr] = (),
) -> tirx.Stmt:
    """``code`` where all ``extents``, of loops in it, are ``least`` at least; ``other`` elsewhere.

    Nothing is asked of multiples of a number that large: zero of them is no iteration of ``code``.
    Where something is asked, the conditions of ``also`` have to hold as well.
    """
    analyzer = Analyzer()
    asked = [extent >= least for extent in extents if _common_factor(extent, analyzer) < least]
    return tirx.IfThenElse(reduce(tirx.And, [*asked, *also]), code, other) if asked else code


def _common_factor(extent: tvm.ir.Expr, analyzer: Analyzer) -> int:
    """A number that the values of ``extent`` are multiples of."""
    values = analyzer.modular_set(analyzer.simplify(extent))
    return int(values.coeff) if int(values.base) == 0 else 1


@cache
def buffer_data_operator() -> tvm.ir.Op:
    """What gives the pointer of an array."""
    return tvm.ir.Op.get("tirx.buffer_data")


# Says of a kernel that its arrays are as large as what is accessed of them.
_EXACT_ARRAYS = "tvm_ext.exact_arrays"


def noted_exact_arrays(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with the note that its arrays need not be made smaller."""
    return func.with_attr(_EXACT_ARRAYS, True)


def has_exact_arrays(func: tirx.PrimFunc) -> bool:
    """Whether the arrays of a kernel are as large as what is accessed: it says so, or has none that
    a schedule may have moved to where less of them is needed.
    """
    if not isinstance(func, tirx.PrimFunc):
        return False
    blocks = nodes(func.body, s_tir.SBlock)
    return _EXACT_ARRAYS in func.attrs or not any(block.alloc_buffers for block in blocks)


def sizes_at(
    func: tirx.PrimFunc, arguments: Sequence[Sequence[int] | int | None]
) -> dict[tvm.ir.Var, tirx.IntImm]:
    """The numbers that a call gives to symbolic sizes and to parameters that are numbers.

    ``arguments`` holds the shape of each tensor, the value of each number, and None for what is not
    known. Constants may be packed in a shape of another rank than the kernel's parameter has.
    """
    found: dict[tvm.ir.Var, tirx.IntImm] = {}
    for param, given in zip(func.params, arguments, strict=False):
        if isinstance(given, int) and not hasattr(param, "shape"):
            found[param] = tirx.const(given, str(param.ty))
        elif isinstance(given, Sequence) and len(getattr(param, "shape", ())) == len(given):
            for size, actual in zip(param.shape, given, strict=True):
                if isinstance(size, tvm.ir.Var):
                    found.setdefault(size, tirx.const(actual, str(size.ty)))
    return found


def with_sizes(func: tirx.PrimFunc, values: Mapping[Any, Any]) -> tirx.PrimFunc:
    """``func`` with numbers for symbolic sizes; those that are parameters are none any more."""
    params = [param for param in func.params if param not in values]
    known = tirx.PrimFunc(params, func.body, func.ret_type, func.attrs)
    known = structural_map(known, (tirx.Var, lambda var: values.get(var, var)))
    # Not in the same walk: TVM's memory breaks where both change a shape.
    return structural_map(known, (tirx.Mul, lambda product: product.a * product.b))


def in_root_block(
    body: tirx.Stmt,
    arrays: Sequence[tirx.Buffer] = (),
    annotations: Mapping[str, Any] | None = None,
) -> s_tir.SBlockRealize:
    """``body`` in a root block, as schedules expect it, that allocates ``arrays``."""
    root = s_tir.SBlock([], [], [], "root", body, None, list(arrays), [], annotations)
    return s_tir.SBlockRealize([], tirx.const(True, "bool"), root)


# Small arrays that LLVM keeps in registers.


def stack_array(size: tirx.Expr | int, dtype: str, name: str) -> tuple[Any, tirx.Stmt]:
    """An array of ``size`` elements, and the statement that declares it for what follows."""
    array = tirx.decl_buffer((size,), dtype, name)
    return array, tirx.AllocBuffer(array)


def through_memory(var: Any, value: Any) -> list[tirx.Stmt]:
    """Binds ``var`` to ``value``, through memory: TVM would put it into each address that the
    variable is in, and prove things of it.
    """
    memory, declaration = stack_array(1, str(var.ty), str(var.name))
    here = [tirx.const(0, "int64")]
    store = tirx.BufferStore(memory, value, here)
    return [declaration, store, tirx.Bind(var, tirx.BufferLoad(memory, here))]


# Narrow floats as integers of the same bits.


def bits_of(expr: Any, dtype: str) -> Any:
    """``expr`` as an integer type of the same bits.

    TVM computes bfloat16 in float32, and takes the bits of that where a value is computed, not
    loaded, before it is looked at as an integer: here such a value is rounded first.
    """
    if str(expr.ty) == dtype:
        return expr
    if is_conditional(expr):
        condition, *values = expr.args
        return tirx.if_then_else(condition, *(bits_of(value, dtype) for value in values))
    if str(expr.ty) != "bfloat16" or isinstance(expr, tvm.ir.TensorLoad):
        return tirx.reinterpret(dtype, expr)
    if isinstance(expr, tirx.FloatImm) and expr.value == 0:
        return tirx.const(0, dtype)
    is_rounded = isinstance(expr, tirx.Cast) and str(expr.value.ty) == "float32"
    return _rounded_to_bfloat16(expr.value if is_rounded else tirx.Cast("float32", expr))


def _rounded_to_bfloat16(value: tvm.ir.Expr) -> tvm.ir.Expr:
    """The upper 16 bits of the nearest bfloat16, of two as near the even one; NaN stays NaN."""
    bits = tirx.reinterpret("uint32", value)
    sixteen, one = tirx.const(16, "uint32"), tirx.const(1, "uint32")
    half = tirx.const(0x7FFF, "uint32") + ((bits >> sixteen) & one)
    # Not as "value != value", which TVM takes for False.
    magnitude = bits & tirx.const(0x7FFFFFFF, "uint32")
    is_nan = magnitude > tirx.const(0x7F800000, "uint32")
    quiet = tirx.const(0x7FC0, "uint32")
    rounded = tirx.Select(is_nan, quiet, (bits + half) >> sixteen)
    return tirx.Cast("uint16", rounded)


# Kernels written anew over flat views of their buffers, in which an index is an address.


class FlatViews:
    """The flat views of a kernel's buffers.

    Loops over several dimensions can then be one loop, without a division to tell them apart.

    Parameters
    ----------
    symbolic_sizes : bool
        Whether buffers of sizes that are known in the run only have views as well.
    """

    def __init__(self, symbolic_sizes: bool = False) -> None:
        self.symbolic_sizes = symbolic_sizes
        # The buffers and their views.
        self.pairs: list[tuple[Any, Any]] = []

    def of(self, buffer: tirx.Buffer) -> tirx.Buffer:
        """The flat view of ``buffer``, the same one at every call."""
        for original, flat in self.pairs:
            if original.same_as(buffer):
                return flat
        flat = tirx.decl_buffer((elements(buffer),), str(buffer.dtype), buffer.name)
        self.pairs.append((buffer, flat))
        return flat

    def may_share_memory(self, store: tirx.BufferStore, func: tirx.PrimFunc) -> bool:
        """Whether TVM may put the result of an assignment in the place of what it reads.

        It does so with arrays that live inside of a kernel. An element must then not be computed
        twice: the second time it would be computed from the result.
        """
        inside = self.allocated(func)
        loads = nodes(store.value, tvm.ir.TensorLoad)
        return among(store.buffer, inside) and any(among(load.source, inside) for load in loads)

    def declarations(self, func: tirx.PrimFunc) -> list[tirx.Stmt]:
        """Statements that make the views of parameters known; the others are to be allocated."""
        return [
            tirx.DeclBuffer(flat, data=buffer_data(original))
            for original, flat in self.pairs
            if among(original, func.params)
        ]

    def allocated(self, func: tirx.PrimFunc) -> list[tirx.Buffer]:
        """The views that are not of parameters."""
        return [flat for original, flat in self.pairs if not among(original, func.params)]

    def kernel(
        self, func: tirx.PrimFunc, code: Sequence[tirx.Stmt], arrays: Sequence[tirx.Buffer] = ()
    ) -> tirx.PrimFunc:
        """``func`` with other statements, which use the views, and ``arrays`` of their own."""
        nothing = [tirx.Evaluate(tirx.const(0, "int32"))]
        body = sequence([*self.declarations(func), *(code or nothing)])
        used = [store.buffer for store in nodes(body, tirx.BufferStore)]
        inside = [view for view in self.allocated(func) if among(view, used)]
        return func.with_body(in_root_block(body, [*inside, *arrays]))


def flattened(store: tirx.BufferStore, views: FlatViews) -> tirx.BufferStore | None:
    """The same assignment to and from flat views; None when a buffer's layout is not plain."""
    buffers = [store.buffer, *(load.source for load in nodes(store, tvm.ir.TensorLoad))]
    if not all(is_compact(buffer, views.symbolic_sizes) for buffer in buffers):
        return None

    def flat_load(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return tirx.BufferLoad(views.of(load.source), [flat_address(load.source, load.indices)])

    address = flat_address(store.buffer, store.indices)
    value, address = (
        structural_map(expr, (tvm.ir.TensorLoad, flat_load)) for expr in (store.value, address)
    )
    return tirx.BufferStore(views.of(store.buffer), value, [address])


def with_flat_memory(store: tirx.BufferStore, views: FlatViews) -> tirx.BufferStore:
    """The same assignment with flat views of all buffers but those in registers.

    Raises
    ------
    ValueError
        A buffer's layout is not plain.
    """

    def in_memory(buffer: tirx.Buffer, indices: Sequence[tvm.ir.Expr]) -> tuple[Any, list[Any]]:
        zero = tirx.const(0, str(buffer.dtype))
        found = flattened(tirx.BufferStore(buffer, zero, list(indices)), views)
        if found is None:
            raise ValueError(f"buffer {buffer.name} is not laid out row by row")
        return found.buffer, list(found.indices)

    def flat(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        if str(load.source.scope()) != "global":
            return load
        return tirx.BufferLoad(*in_memory(load.source, load.indices))

    value = structural_map(store.value, (tvm.ir.TensorLoad, flat))
    if str(store.buffer.scope()) != "global":
        return tirx.BufferStore(store.buffer, value, store.indices)
    buffer, indices = in_memory(store.buffer, store.indices)
    return tirx.BufferStore(buffer, value, indices)
