"""SplitToSlices: parts of a split that operators read where they lie."""

import tvm
from tvm import relax, tirx

from tvm_ext.relay_passes.axis_factors import RESHAPES
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement, view_of
from tvm_ext.relay_passes.expressions import static_extents
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_roles import BROADCASTING
from tvm_ext.relay_passes.sink_reshapes import UNARY

# Operators that are fused with a slice in front of them.
_FUSED_WITH_SLICE = frozenset({"relax.permute_dims", "relax.concat", *UNARY, *BROADCASTING})


@graph_pass
class SplitToSlices:
    """Replaces a split by slices where operators follow that are fused with a slice.

    Before: ``parts = split(x, 3, axis=3)``; ``permute_dims(parts[0], [0, 2, 1, 3])``
    After:  ``permute_dims(strided_slice(x, axes=[3], begin=[0], end=[16]), [0, 2, 1, 3])``

    A split is a kernel that copies all of its parts. A slice in front of a transpose or of an
    elementwise operator is part of that operator's kernel, and is not copied at all.

    Leaves alone: splits whose parts are read by other operators only, since one kernel copies them
    sooner than several; parts of a size that a run decides, or that are reshaped to such sizes.

    Run after: LayoutPlanning. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return _Slicer().run(mod)


class _Slicer(BindingRewriter):
    pass_name = "SplitToSlices"

    def has_work(self, func: relax.Function) -> bool:
        """Whether there is a split."""
        return "relax.split" in view_of(func).operators

    def start_function(self, func: relax.Function) -> None:
        super().start_function(func)
        self._readers: dict[relax.Var, list[relax.Var]] = {}
        self._sliced: dict[relax.Var, bool] = {}
        for var, value in self.view.bindings().items():
            for operand in _operands(value):
                self._readers.setdefault(operand, []).append(var)

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.TupleGetItem):
            return None
        split = value.tuple_value
        call = self.view.call(split, "relax.split")
        if call is None or not isinstance(split, relax.Var):
            return None
        if split not in self._sliced:
            parts = self._readers.get(split, [])
            self._sliced[split] = any(map(self._is_fused, parts))
        starts = _starts(call) if self._sliced[split] else None
        if starts is None:
            return None
        axis = int(call.attrs.axis) % call.args[0].ty.ndim
        begin, end = starts[value.index : value.index + 2]
        piece = relax.op.strided_slice(call.args[0], [axis], [begin], [end])
        return Replacement(piece, (split,), "a slice, which its readers are fused with")

    def _is_fused(self, var: relax.Var) -> bool:
        """Whether all that reads ``var``, past static reshapes, is fused with a slice before it."""
        readers = self._readers.get(var, [])
        calls = [self.view.call(reader, *_FUSED_WITH_SLICE, *RESHAPES) for reader in readers]
        if not readers or any(call is None for call in calls) or self._is_used_otherwise(var):
            return False
        # A reshape to sizes of a run is a view of memory, which ends a kernel.
        return all(
            call.op.name in _FUSED_WITH_SLICE
            or (static_extents(call.ty) is not None and self._is_fused(reader))
            for reader, call in zip(readers, calls, strict=True)
            if call is not None
        )

    def _is_used_otherwise(self, var: relax.Var) -> bool:
        """Whether ``var`` is a result, or part of a tuple."""
        return self.view.uses(var) > len(self._readers[var])


def _operands(value: relax.Expr) -> list[relax.Var]:
    """The variables that an operator or an access to a tuple reads, also in a list of tensors."""
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    args = list(value.args) if isinstance(value, relax.Call) else []
    lists = [list(arg.fields) if isinstance(arg, relax.Tuple) else [arg] for arg in args]
    return [arg for fields in lists for arg in fields if isinstance(arg, relax.Var)]


def _starts(call: relax.Call) -> list[int] | None:
    """Where the parts start along the axis of a split, and where the last ends."""
    starts, axis = [0], int(call.attrs.axis)
    for part in call.ty.fields:
        size = part.shape[axis] if isinstance(part.shape, relax.ShapeExpr) else None
        # A size may also be computed from others in the run.
        if not isinstance(size, tirx.IntImm):
            return None
        starts.append(starts[-1] + int(size))
    return starts
