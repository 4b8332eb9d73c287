"""The pass that gives every computed size of a kernel's parameters a name of its own."""

from collections.abc import Container
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import with_functions

_COMPUTED = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod),
    *(tirx.Min, tirx.Max, tirx.Select, tirx.Cast, tvm.ir.Call),
)


@graph_pass
class NameSymbolicSizes:
    """Gives every computed size of a kernel's parameters a name of its own.

    Before: ``a: (1, 8, (h - 1) // 2 + 1), b: (1, 8, (h - 1) // 4 + 1), loop over (h - 1) // 4 + 1``
    After:  ``a: (1, 8, m), b: (1, 8, n), loop over n``

    The sizes of a layer are computed from those of the layer before, so that expressions grow with
    depth; TVM carries them through every index, takes minutes to build a detector of fifty layers,
    and its schedule primitives cannot see that such loops join or split evenly.

    Functions of branches and loops get the same where a size of a parameter is computed from one
    that no parameter has: FuseTIR takes away the parameter that had it when only types use it.

    Leaves alone: sizes that are a number or a variable, with a number added or multiplied.

    Run after: FuseTIR, which compares the sizes of the operators that it joins.
    Run before: RewriteDataflowReshape, which cannot divide by a size that is chosen in the run.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel or function has such a size."""
        changed = {}
        for global_var, func in mod.functions.items():
            is_kernel = isinstance(func, tirx.PrimFunc)
            sizes = _computed_sizes(func) if is_kernel else _undefined_sizes(func)
            if sizes:
                like_arrays = _with_sizes_of_arrays(func) if is_kernel else func
                changed[global_var] = _with_names(like_arrays, sizes)
        return with_functions(mod, changed)


def _computed_sizes(func: tirx.PrimFunc) -> dict[Any, tuple[Any, int]]:
    """The computed sizes of parameters, each once, by what is left without an added number."""
    sizes: dict[Any, tuple[Any, int]] = {}
    for buffer in func.params:
        for size in getattr(buffer.ty, "shape", ()):
            base, added = without_number(size)
            if isinstance(base, _COMPUTED) and not is_simple(base):
                sizes.setdefault(tvm_ffi.StructuralKey(base), (size, added))
    return sizes


def _undefined_sizes(func: tvm.ir.BaseFunc) -> dict[Any, tuple[Any, int]]:
    """The sizes of a Relax function's parameters that no parameter defines the variables of."""
    if not isinstance(func, relax.Function):
        return {}
    types = relax.TupleType([param.ty for param in func.params])
    defined = set(relax.analysis.definable_tir_vars_in_type(types))
    sizes: dict[Any, tuple[Any, int]] = {}
    for shape in (getattr(param.ty, "shape", None) for param in func.params):
        for size in shape.values if isinstance(shape, relax.ShapeExpr) else ():
            if not set(tirx.analysis.undefined_vars(size)) <= defined:
                base, added = without_number(size)
                sizes.setdefault(tvm_ffi.StructuralKey(base), (size, added))
    return sizes


def without_number(size: tirx.Expr) -> tuple[Any, int]:
    """``size`` as a sum of something and a number."""
    if isinstance(size, tirx.Add | tirx.Sub) and isinstance(size.b, tirx.IntImm):
        base, added = without_number(size.a)
        number = int(size.b)
        return base, added + (number if isinstance(size, tirx.Add) else -number)
    return size, 0


def is_simple(size: Any) -> bool:
    """A variable with numbers added to it or multiplied by, which TVM's analysis sees through."""
    if isinstance(size, tirx.Add | tirx.Sub | tirx.Mul) and isinstance(size.b, tirx.IntImm):
        return is_simple(size.a)
    return isinstance(size, tirx.Var)


def _with_sizes_of_arrays(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with loops over its own arrays as long as these say it.

    TVM simplifies the extents of loops and not the shapes of arrays: where one is computed from a
    size that gets a name, no analysis would see any more that the other is the same.
    """
    blocks: list[s_tir.SBlock] = []
    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, blocks.append))
    shapes = [array.shape for block in blocks for array in block.alloc_buffers]
    analyzer = Analyzer()
    said: dict[Any, Any] = {}
    for size in (size for shape in shapes for size in shape if isinstance(size, _COMPUTED)):
        simple = analyzer.simplify(size)
        # What only adds numbers is known again without help.
        if isinstance(simple, _COMPUTED) and not _is_part(simple, size):
            said[tvm_ffi.StructuralKey(simple)] = size
    # One that holds another's simple form would be said anew in itself, without end.
    said = {key: size for key, size in said.items() if not _holds_any(size, said)}

    def as_said(expr: Any) -> Any:
        return said.get(tvm_ffi.StructuralKey(expr), expr)

    return tvm_ffi.structural_map(func, (_COMPUTED, as_said), order="pre") if said else func


def _holds_any(size: Any, keys: Container[Any]) -> bool:
    return any(tvm_ffi.StructuralKey(part) in keys for part in _parts(size))


def _is_part(part: Any, whole: Any) -> bool:
    """Whether ``part``, or it with a number added, is in ``whole``."""
    base, _ = without_number(part)
    return any(tvm_ffi.structural_equal(base, without_number(one)[0]) for one in _parts(whole))


def _parts(size: Any) -> list[Any]:
    """The computed sizes that ``size`` is made of, itself among them."""
    parts: list[Any] = []
    tvm_ffi.structural_walk(size, (_COMPUTED, parts.append))
    return parts


def _with_names(func: tvm.ir.BaseFunc, sizes: dict[Any, tuple[Any, int]]) -> tvm.ir.BaseFunc:
    names = {
        base: (tirx.Var(f"size_{number}", size.ty), added)
        for number, (base, (size, added)) in enumerate(sizes.items())
    }

    def named(expr: Any) -> Any:
        base, added = without_number(expr)
        found = names.get(tvm_ffi.StructuralKey(base))
        if found is None:
            return expr
        name, of_name = found
        difference = added - of_name
        return name + tirx.IntImm(str(name.ty), difference) if difference else name

    return tvm_ffi.structural_map(func, (_COMPUTED, named), order="pre")
