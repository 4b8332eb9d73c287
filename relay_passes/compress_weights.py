"""CompressWeights: matmuls that widen weights of 8 or 16 bits as they read them."""

import math

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.hardware.cpu.description import CpuDescription, current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import (
    GraphView,
    constant_value,
    numpy_dtype,
    operator_name,
    tensor_bytes,
)
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.spans import relax_functions

_WIDE, _NARROW = "float32", "float16"

# Types that a weight may have had in the model, that of the fewest bytes first. Of the others both
# hold small integers, and one instruction widens float16.
_EXACT = ("int8", _NARROW, "bfloat16")

# What rounding may change a row or column of weights by: twice half a unit in the last place.
_LARGEST_ROUNDING = 2.0**-10

# Weights that show whether the others can be numbers of a narrow type.
_SAMPLE = 4096


@graph_pass
class CompressWeights:
    """Keeps weights of matmuls in 8 or 16 bits, in memory and in saved models.

    Before: ``y = matmul(x, W)``             of float32
    After:  ``y = compressed_matmul(x, N)``  which sums ``x * astype(N, float32)`` in float32

    Weights that all are numbers of int8, float16 or bfloat16 are stored so, which changes no
    result. Those of models of these types are, and integers that a CPU without an instruction for
    products of bytes multiplies as floats. Where ``precision="float16"`` was asked for, others are
    rounded to float16, to the nearest; products and sums stay those of float32. A matmul of few
    rows takes the time of reading its weights. See OpenVINO's "weight compression".

    So are weights of int16 that are numbers of int8, in matmuls of int16 summed in int32, on CPUs
    with an instruction for pairs of these.

    Leaves alone: weights that are computed in the run, or batches of matrices; programs whose
    weights all stay in the cores' own caches, where widening takes as long as reading; so many
    rows that products take longer than reading the weights; fewer columns than a vector holds;
    weights that are too large or too small for float16, or not finite; CPUs without an instruction
    that widens; other targets than CPUs.

    Run after: GemmFusion, MixedPrecision, LayoutPlanning. Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        machine = current_cpu()
        return mod if machine is None else _WeightCompressor(machine).run(mod)


class _WeightCompressor(BindingRewriter):
    pass_name = "CompressWeights"
    roots = frozenset({"relax.matmul"})

    def __init__(self, machine: CpuDescription) -> None:
        self._machine = machine
        self._stored: tuple[tvm.IRModule, float] | None = None
        self._narrow: dict[tuple[int, str], tuple[relax.Expr, relax.Expr]] = {}

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul")
        if call is not None and self._machine.multiplies_pairs_of_int16:
            integers = multiplies_bytes(self.view, call)
            if integers is not None:
                return self._compressed(call, integers, "int8", "as they were")
        if call is None or any(str(one.ty.dtype) != _WIDE for one in (*call.args, var)):
            return None
        weights = constant_value(self.view, call.args[1])
        if weights is None or weights.ndim != 2 or not weights.size:
            return None
        dtype = next((name for name in _EXACT if self._holds(name, weights)), None)
        if dtype is None and self._machine.stored_weights != _NARROW:
            return None
        reason = self._slower(call, weights)
        if reason is None and dtype is None:
            reason = _unlike(weights)
        if reason is not None:
            self.refuse(reason, var)
            return None
        what = "as they were" if dtype is not None else "rounded"
        return self._compressed(call, weights, dtype or _NARROW, what)

    def _compressed(
        self, call: relax.Call, weights: np.ndarray, dtype: str, what: str
    ) -> Replacement:
        stored = self._narrowed(call.args[1], weights, dtype)
        attrs = {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
        made = self.builder.call_te(compressed_matmul, call.args[0], stored, primfunc_attrs=attrs)
        return Replacement(made, (), f"weights are stored in {dtype}, {what}")

    def _narrowed(self, operand: relax.Expr, weights: np.ndarray, dtype: str) -> relax.Expr:
        """The constant of narrow weights: one for all products that share them."""
        key = hash(operand), dtype
        if key not in self._narrow:
            narrow = np.ascontiguousarray(weights.astype(numpy_dtype(dtype)))
            # The original is kept for its identity.
            self._narrow[key] = operand, relax.const(tvm.runtime.tensor(narrow), dtype)
        return self._narrow[key][1]

    def _holds(self, dtype: str, weights: np.ndarray) -> bool:
        """Whether all weights are numbers of a type that this CPU widens."""
        if not self._machine.widens(dtype):
            return False
        # Of weights of float32 the first few show that they are not.
        return _are_exact(weights.reshape(-1)[:_SAMPLE], dtype) and _are_exact(weights, dtype)

    def _slower(self, call: relax.Call, weights: np.ndarray) -> str | None:
        """Why a product would take longer with narrow weights; None where it would not."""
        machine, stored_bytes = self._machine, self._stored_bytes()
        if stored_bytes <= machine.l2_bytes * machine.cores:
            return "all weights of the program stay in L2"
        if weights.shape[1] < machine.vector_lanes(_WIDE):
            return "fewer columns than a vector holds"
        multiplying = 2.0 * _least_rows(call) * weights.size / machine.peak_flops(_WIDE)
        if multiplying >= tensor_bytes(call.args[1].ty) / machine.bandwidth(stored_bytes):
            return "products of so many rows take longer than reading the weights"
        return None

    def _stored_bytes(self) -> float:
        """What the constants of all functions take, each once."""
        if self._stored is None or self._stored[0] is not self.mod:
            sizes: dict[int, float] = {}

            def look(expr: relax.Expr) -> None:
                if isinstance(expr, tvm.ir.GenericConst):
                    sizes[hash(expr)] = tensor_bytes(expr.ty)

            for func in relax_functions(self.mod).values():
                relax.analysis.post_order_visit(func, look)
            self._stored = self.mod, sum(sizes.values())
        return self._stored[1]


def _least_rows(call: relax.Call) -> int:
    """Rows of a matmul; a size that a run decides may be one."""
    shape = call.args[0].ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return 1
    known = (extent for extent in shape.values[:-1] if isinstance(extent, tirx.IntImm))
    return math.prod(int(extent) for extent in known)


def _unlike(weights: np.ndarray) -> str | None:
    """Why weights are not rounded to float16; None where they can be."""
    # NaN is not below.
    if not np.abs(weights).max() <= np.finfo(_NARROW).max:
        return "a weight is no finite number of float16"
    # Below the normal numbers are multiples of 2**-24: their errors are no share of them. A column
    # makes an output, a row may be for an input of large numbers.
    errors = weights - weights.astype(_NARROW).astype(weights.dtype)
    for axis in range(weights.ndim):
        lost, whole = (np.linalg.norm(each, axis=axis) for each in (errors, weights))
        if np.any(lost > _LARGEST_ROUNDING * whole):
            return "a row or column of weights is below the normal numbers of float16"
    return None


def _are_exact(weights: np.ndarray, dtype: str) -> bool:
    with np.errstate(all="ignore"):
        narrow = weights.astype(numpy_dtype(dtype))
    return np.array_equal(narrow.astype(weights.dtype), weights, equal_nan=True)


def multiplies_bytes(view: GraphView, call: relax.Call) -> np.ndarray | None:
    """The weights of a matmul of int16 that is summed in int32 by pairs of steps, numbers of int8;
    None for other calls.
    """
    types = [str(one.ty.dtype) for one in (*call.args, call)]
    if operator_name(call) != "relax.matmul" or types != ["int16", "int16", "int32"]:
        return None
    weights = constant_value(view, call.args[1])
    if weights is None or weights.ndim != 2 or not weights.size or weights.shape[0] % 2:
        return None
    return weights if _are_exact(weights, "int8") else None


def compressed_matmul(x: te.Tensor, weights: te.Tensor) -> te.Tensor:
    """The product of ``x[..., depth]`` of float32, or of int16, and narrow
    ``weights[depth, columns]``.
    """
    depth = te.reduce_axis((0, weights.shape[0]), "depth")
    wide = "int32" if x.dtype == "int16" else _WIDE

    def each(*indices: tirx.Var) -> tvm.ir.Expr:
        *rows, column = indices
        element = x(*rows, depth)
        element = element if x.dtype == wide else tirx.Cast(wide, element)
        return te.sum(element * tirx.Cast(wide, weights(depth, column)), axis=depth)

    return te.compute((*x.shape[:-1], weights.shape[1]), each, "compressed_matmul")
