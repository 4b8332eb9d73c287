"""Sinks of an attention: scores that join the softmax and whose weights are dropped.

Models write one as a column beside the scores: ``slice(softmax(concat(scores, sink)))``.
"""

from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.passes.attention_operands import extents
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.expressions import constant_value

_AXES = "bhqk"
_AXIS_OF_QUERIES = -2


@dataclass(frozen=True)
class AttentionSink:
    """A sink that was found.

    Attributes
    ----------
    column : relax.Expr
        Its scores.
    scores : relax.Expr
        What it stands beside.
    both : relax.Expr
        The two side by side.
    softmax : relax.Call
        The softmax of both.
    first : int
        Where the scores begin: 1 where the sink is ahead of them.
    """

    column: relax.Expr
    scores: relax.Expr
    both: relax.Expr
    softmax: relax.Call
    first: int

    def operand(self, view: GraphView) -> tuple[relax.Expr, str]:
        """Its scores as they were before they were repeated, and a letter for each axis.

        Raises
        ------
        NotApplicable
            They differ by query.
        """
        tensor = self.column
        expanded = view.call(tensor, "relax.broadcast_to")
        if expanded is not None:
            tensor = expanded.args[0]
        values = constant_value(view, tensor)
        if values is not None and values.ndim > 1:
            # Constants are folded with their repetition.
            once = values.take([0], _AXIS_OF_QUERIES)
            tensor = relax.const(once) if (values == once).all() else tensor
        axes = _AXES[len(_AXES) - tensor.ty.ndim :]
        if len(axes) > 1 and (extents(tensor) or [0])[_AXIS_OF_QUERIES:] != [1, 1]:
            raise NotApplicable("a sink of the softmax differs by query")
        return tensor, axes


def find_sink(view: GraphView, expr: relax.Expr) -> AttentionSink | None:
    """The sink whose column is dropped from the weights ``expr``; None where there is none."""
    dropped = view.call(expr, "relax.strided_slice")
    softmax = None if dropped is None else view.call(dropped.args[0], "relax.nn.softmax")
    both = None if softmax is None else view.call(softmax.args[0], "relax.concat")
    if dropped is None or softmax is None or both is None or both.ty.ndim != len(_AXES):
        return None
    tensors = view.value(both.args[0])
    first = _begin_of_last_axis(dropped)
    if not isinstance(tensors, relax.Tuple) or len(tensors.fields) != 2 or first not in (0, 1):
        return None
    if int(both.attrs.axis) % len(_AXES) != len(_AXES) - 1:
        return None
    scores, column = tensors.fields if first == 0 else reversed(tensors.fields)
    one = extents(column)
    if extents(scores) != extents(expr) or one is None or one[-1] != 1:
        return None
    return AttentionSink(column, scores, softmax.args[0], softmax, first)


def _begin_of_last_axis(cut: relax.Call) -> int | None:
    """Where a slice of the last axis alone, by steps of 1, begins; None for others."""
    axes, begins, _, *strides = (_numbers(listed) for listed in cut.args[1:])
    if strides not in ([], [[1]]) or axes not in ([-1], [len(_AXES) - 1]) or begins is None:
        return None
    return begins[0]


def _numbers(listed: Any) -> list[int | None] | None:
    if not isinstance(listed, relax.Tuple):
        return None
    return [int(one) if isinstance(one, int | tirx.IntImm) else None for one in listed.fields]
