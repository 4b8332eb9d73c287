"""Which values are known when a model is compiled.

The analysis of Wegman and Zadeck, "Constant Propagation with Conditional Branches" (TOPLAS 13(2),
1991), which LLVM and MLIR call SCCP: a branch that no run takes decides nothing, so that a value
may be known behind an If or a Loop that a look at each binding alone says nothing of. What is
computed is a few elements at most, as conditions, counts and sizes are; tensors are for
``FoldConstantCalls``.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.relay_passes.dataflow.framework import ForwardAnalysis, Solution, State, solve_forward
from tvm_ext.relay_passes.expressions import numpy_dtype

# Elements of a value that is kept.
MOST_ELEMENTS = 64


class Known:
    """A known value; equal to another one of the same type, shape and bits."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self._key = (str(array.dtype), array.shape, array.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"Known({self.array.tolist()})"


class _Unknown:
    """Of a value that runs decide."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
Constant: TypeAlias = Known | _Unknown
_Function: TypeAlias = Callable[[relax.Call, list[np.ndarray]], np.ndarray]


def constants(mod: tvm.IRModule) -> Solution[Constant]:
    """For every value of a module whether it is known, and which it is."""
    return solve_forward(mod, Constants())


class Constants(ForwardAnalysis[Constant]):
    """The analysis, of a flat lattice: no value, one value, any value."""

    def join(self, one: Constant, other: Constant) -> Constant:
        """The value if both are the same."""
        return one if one == other else UNKNOWN

    def top(self, ty: tvm.ir.Type) -> Constant:
        """Any value; of a shape, its sizes where they are numbers."""
        return _sizes(ty.values) if isinstance(ty, relax.ShapeType) and ty.values else UNKNOWN

    def constant(self, value: relax.Expr) -> Constant:
        """A literal that is small enough."""
        if isinstance(value, relax.ShapeExpr):
            return _sizes(value.values[:])
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            return Known(np.asarray(value.value, numpy_dtype(str(value.ty.dtype))))
        if isinstance(value, tvm.ir.GenericConst) and isinstance(value.ty, relax.TensorType):
            return _kept(value.value.numpy()) if _is_small(value) else UNKNOWN
        return UNKNOWN

    def taken(self, condition: Constant) -> bool | None:
        """Known where the condition is."""
        return bool(np.all(condition.array)) if isinstance(condition, Known) else None

    def transfer(self, call: relax.Call, operands: Sequence[State]) -> State:
        """What NumPy computes as a kernel does, of known operands."""
        name = str(call.op.name).removeprefix("relax.")
        if name == "shape_of":
            shape = getattr(call.args[0].ty, "shape", None)
            return _sizes(shape.values[:]) if isinstance(shape, relax.ShapeExpr) else UNKNOWN
        function = _FUNCTIONS.get(name)
        flat = [
            part for state in operands for part in (state if isinstance(state, tuple) else [state])
        ]
        if function is None or not all(isinstance(state, Known) for state in flat):
            return self.top_of(call.ty)
        arrays = [state.array for state in flat]
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(function(call, arrays))
        except (ValueError, IndexError):
            # A run that reaches it fails, and says so.
            return UNKNOWN
        dtype = getattr(call.ty, "dtype", None)
        return _kept(found if dtype is None else found.astype(numpy_dtype(str(dtype))))


def _is_small(value: relax.Expr) -> bool:
    shape = value.value.shape
    return int(np.prod([int(size) for size in shape])) <= MOST_ELEMENTS


def _kept(array: np.ndarray) -> Constant:
    return Known(array) if array.size <= MOST_ELEMENTS else UNKNOWN


def _sizes(extents: Sequence[Any]) -> Constant:
    if not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return UNKNOWN
    return _kept(np.array([int(extent) for extent in extents], np.int64))


def _plain(function: Callable[..., Any]) -> _Function:
    return lambda call, arrays: function(*arrays)


def _axes(axis: Any) -> tuple[int, ...] | None:
    return None if axis is None else tuple(int(one) for one in axis)


def _take(call: relax.Call, arrays: list[np.ndarray]) -> np.ndarray:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return np.take(arrays[0], arrays[1], axis)


def _concat(call: relax.Call, arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays, None if call.attrs.axis is None else int(call.attrs.axis))


def _permute(call: relax.Call, arrays: list[np.ndarray]) -> np.ndarray:
    return np.transpose(arrays[0], _axes(call.attrs.axes))


# NumPy rounds these as a kernel does.
_FUNCTIONS: Mapping[str, _Function] = {
    "abs": _plain(np.abs),
    "add": _plain(np.add),
    # A cast of the result to its type follows.
    "astype": _plain(np.asarray),
    "broadcast_to": _plain(lambda x, sizes: np.broadcast_to(x, tuple(sizes))),
    "concat": _concat,
    "equal": _plain(np.equal),
    "expand_dims": lambda call, arrays: np.expand_dims(arrays[0], _axes(call.attrs.axis) or ()),
    "greater": _plain(np.greater),
    "greater_equal": _plain(np.greater_equal),
    "less": _plain(np.less),
    "less_equal": _plain(np.less_equal),
    "logical_and": _plain(np.logical_and),
    "logical_not": _plain(np.logical_not),
    "logical_or": _plain(np.logical_or),
    "maximum": _plain(np.maximum),
    "minimum": _plain(np.minimum),
    "multiply": _plain(np.multiply),
    "negative": _plain(np.negative),
    "not_equal": _plain(np.not_equal),
    "permute_dims": _permute,
    "reshape": _plain(lambda x, sizes: x.reshape(tuple(sizes))),
    "shape_to_tensor": _plain(np.asarray),
    "squeeze": lambda call, arrays: np.squeeze(arrays[0], _axes(call.attrs.axis)),
    "subtract": _plain(np.subtract),
    "take": _take,
    "tensor_to_shape": _plain(np.asarray),
    "where": _plain(np.where),
}
