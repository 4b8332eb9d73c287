"""LastPositionOnly: the logits of the last token alone, where only these are read."""

import json
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.expressions import is_symbolic
from tvm_ext.relay_passes.graph_pass import INJECTIVE, graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.layout_roles import BROADCASTING
from tvm_ext.relay_passes.sink_reshapes import UNARY

LAST_ATTRIBUTE = "tvm_ext.last_position"
"""Of ``main``: position and axis of the outputs that have their last element only, as text."""

LAST = "last"
"""What the name of a kernel that copies the last element along an axis begins with."""


def last_positions(mod: tvm.IRModule) -> list[tuple[int, int]]:
    """Position and axis of each output of which the pass left the last element."""
    attrs = mod["main"].attrs
    if attrs is None or LAST_ATTRIBUTE not in attrs:
        return []
    return [(output, axis) for output, axis in json.loads(str(attrs[LAST_ATTRIBUTE]))]


@graph_pass
class LastPositionOnly:
    """Computes of an output the last element along an axis only, in front of the last product.

    Before: ``logits = matmul(x, W) + b``; ``x`` is of ``(batch, n, 576)``
    After:  ``logits = matmul(call_tir(last, x), W) + b``, which is of ``(batch, 1, words)``;
            the kernel ``last`` copies ``x[:, n - 1]``

    The logits of 2,000 tokens and 150,000 words are 1.2 GB, and generation reads the last row.
    ``outputs`` has the position and the axis of each output; without any the pass does nothing.
    ``tvm_ext.generate`` names the logits.

    Leaves alone: outputs that no matmul makes, or that something else than elementwise operators
    makes of one; axes that are summed over, and those of one element.

    Run after: CanonicalizeBindings. Run before: GemmFusion, FuseDequantizeMatmul,
    FakeQuantizationToInteger, NormalizationFusion, KeepStateInPlace.
    """

    outputs: tuple[tuple[int, int], ...] = ()

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself where no output is narrowed."""
        if not self.outputs or last_positions(mod):
            return mod
        return _Narrower(mod).module(self.outputs)


class _Narrower:
    """Writes ``main`` with narrowed outputs."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod, self._main = mod, mod["main"]
        self._view = GraphView(self._main)
        self._builder = relax.BlockBuilder(mod)
        self._made: list[relax.Binding] = []
        # By the hash of a variable and an axis: the last element of the variable along it.
        self._last: dict[tuple[int, int], relax.Var] = {}
        self._is_past_product = False

    def module(self, outputs: Sequence[tuple[int, int]]) -> tvm.IRModule:
        """The module, in which those of ``outputs`` are narrow that can be."""
        place = self._result_place()
        if place is None:
            record_refusal("LastPositionOnly", "main", "the model has one output only")
            return self._mod
        block, number = place
        fields = list(self._view.value(self._main.body.body).fields)
        narrowed = []
        for output, axis in outputs:
            narrow = self._narrow(fields[output], axis)
            if narrow is not None:
                fields[output] = narrow
                narrowed.append((output, axis))
        if not narrowed:
            return self._mod
        result = self._bound(relax.Tuple(fields), relax.Var, "result")
        blocks = list(self._main.body.blocks)
        bindings = list(blocks[block].bindings)
        bindings[number : number + 1] = self._made
        blocks[block] = type(blocks[block])(bindings)
        return self._with_main(relax.SeqExpr(blocks, result), result.ty, narrowed)

    def _with_main(
        self, body: relax.Expr, result: tvm.ir.Type, narrowed: Sequence[tuple[int, int]]
    ) -> tvm.IRModule:
        attrs = dict(self._main.attrs.items()) if self._main.attrs else {}
        main = relax.Function(self._main.params, body, result, self._main.is_pure)
        main = main.with_attrs({**attrs, LAST_ATTRIBUTE: json.dumps(narrowed)})
        self._builder.update_func(self._mod.get_global_var("main"), main)
        return relax.transform.Normalize()(self._builder.finalize())

    def _result_place(self) -> tuple[int, int] | None:
        """Block and place of the binding of the tuple of all outputs."""
        for block, one in enumerate(self._main.body.blocks):
            for number, binding in enumerate(one.bindings):
                if binding.var.same_as(self._main.body.body):
                    is_tuple = isinstance(binding.value, relax.Tuple)
                    return (block, number) if is_tuple else None
        return None

    def _narrow(self, output: relax.Expr, axis: int) -> relax.Var | None:
        """The last element of an output; None where it cannot be computed alone."""
        name = str(getattr(output, "name_hint", "output"))
        extent = _extent(output, axis)
        if extent is None or not isinstance(output, relax.Var):
            record_refusal("LastPositionOnly", name, "its size is not known")
            return None
        if not is_symbolic(extent) and int(extent) <= 1:
            record_refusal("LastPositionOnly", name, "it has one element along the axis")
            return None
        if not self._leads_to_product(output, axis):
            record_refusal("LastPositionOnly", name, "no product makes it, row by row")
            return None
        self._is_past_product = False
        narrow = self._last_of(output, axis)
        record_applied("LastPositionOnly", name, f"its last element along axis {axis}")
        return narrow

    def _leads_to_product(self, expr: relax.Expr, axis: int) -> bool:
        """Whether a product lies behind elementwise operators alone."""
        operands = self._operands(expr, axis)
        if operands is None or not isinstance(expr, relax.Var):
            return False
        if self._view.call(expr, "relax.matmul") is not None:
            return True
        ways = [self._leads_to_product(operand, inner) for operand, inner in operands if inner >= 0]
        return bool(ways) and all(ways)

    def _last_of(self, expr: relax.Expr, axis: int) -> relax.Expr:
        """What ``expr`` has last along ``axis``: computed alone, or as a slice."""
        key = hash(expr), axis
        if key in self._last:
            return self._last[key]
        operands = self._operands(expr, axis)
        # Behind the product, what others read as well is there anyway.
        is_shared = self._is_past_product and self._view.uses(expr) > 1
        if operands is None or is_shared:
            made = self._slice(expr, axis)
        else:
            call = self._view.value(expr)
            self._is_past_product |= call.op.name == "relax.matmul"
            own = [
                operand if inner < 0 else self._last_of(operand, inner)
                for operand, inner in operands
            ]
            made = self._bound(relax.Call(call.op, [*own, *call.args[len(own) :]], call.attrs))
        self._last[key] = made
        return made

    def _operands(self, expr: relax.Expr, axis: int) -> list[tuple[relax.Expr, int]] | None:
        """What makes ``expr`` row by row, each with its own number of the axis.

        The number is negative for what lacks the axis. None for what is not made row by row.
        """
        call = self._view.call(expr, "relax.matmul", *UNARY, *BROADCASTING)
        extent = _extent(expr, axis)
        if call is None or extent is None:
            return None
        if call.op.name == "relax.matmul":
            rows, weights = call.args
            # Of a stack of matrices, each row of the result needs its own.
            is_row = axis == expr.ty.ndim - 2 and rows.ty.ndim > 1
            if not is_row and (axis >= expr.ty.ndim - 2 or weights.ty.ndim > 2):
                return None
            return [(rows, axis - expr.ty.ndim + rows.ty.ndim), (weights, -1)]
        count = 1 if call.op.name in UNARY else len(call.args)
        found = []
        for operand in call.args[:count]:
            own = axis - expr.ty.ndim + _rank(operand)
            size = _extent(operand, own) if own >= 0 else None
            if own >= 0 and size is None:
                return None
            is_broadcast = size is None or (isinstance(size, tirx.IntImm) and int(size) == 1)
            found.append((operand, -1 if is_broadcast else own))
        return found

    def _slice(self, expr: relax.Expr, axis: int) -> relax.Var:
        shape = list(expr.ty.shape.values)
        kernel = self._builder.add_func(last_element(shape, str(expr.ty.dtype), axis), LAST)
        shape[axis] = tirx.IntImm("int64", 1)
        result = relax.TensorType(shape, expr.ty.dtype)
        return self._bound(relax.call_tir(kernel, relax.Tuple([expr]), result))

    def _bound(
        self, value: relax.Expr, kind: type = relax.DataflowVar, name: str = "last"
    ) -> relax.Var:
        value = self._builder.normalize(value)
        var = kind(name, value.ty)
        self._made.append(relax.VarBinding(var, value))
        return var


def last_element(shape: Sequence[tirx.Expr], dtype: str, axis: int) -> tirx.PrimFunc:
    """The kernel that copies the last element along an axis; consumers take it in.

    StridedSlice writes a begin that a run decides as a choice, which TVM cannot give a type where
    it is in a size.
    """
    own: dict[tvm_ffi.StructuralKey, tirx.Var] = {}
    sizes = [
        extent
        if isinstance(extent, tirx.IntImm)
        else own.setdefault(tvm_ffi.StructuralKey(extent), tirx.Var(f"n{number}", "int64"))
        for number, extent in enumerate(shape)
    ]
    x = te.placeholder(sizes, dtype, "x")
    one = [*sizes[:axis], tirx.IntImm("int64", 1), *sizes[axis + 1 :]]
    last = te.compute(
        one,
        lambda *place: x(*place[:axis], sizes[axis] - 1, *place[axis + 1 :]),
        "last",
        tag="injective",
    )
    func = te.create_prim_func([x, last]).without_attr("global_symbol")
    return func.with_attr("op_pattern", INJECTIVE)


def _rank(expr: relax.Expr) -> int:
    """Dimensions of a tensor; 0 for a scalar that is no tensor."""
    return int(getattr(expr.ty, "ndim", 0))


def _extent(expr: relax.Expr, axis: int) -> tirx.Expr | None:
    """The size along an axis; None where it is not known."""
    shape = getattr(expr.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or not 0 <= axis < len(shape.values):
        return None
    return shape.values[axis]
