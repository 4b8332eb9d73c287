"""LSTM, GRU and RNN, which TVM's importer does not have.

The input times its weights is one matmul over all steps. The rest is one kernel with all steps
inside (``tvm_ext.tir_schedules.operators.recurrence``): a graph of slices for each step would be
hundreds of kernels, and could not leave the number of steps to the run.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.quantization import DynamicQuantizeLinear, centred_product
from tvm_ext.onnx_frontend.onnx_graph import INPUT_STEPS, QUANTIZED_STATE, RECURRENT_STEPS
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_constant
from tvm_ext.tir_schedules.cpu.recurrent_layer import RecurrenceLoops, recurrence_code
from tvm_ext.tir_schedules.operators.recurrence import (
    ANNOTATION,
    Activation,
    Cell,
    Recurrence,
    RecurrenceOperands,
)

# The activation functions of a recurrent node, with the parameters of each.


# The functions of one direction where the node names none (ONNX operators LSTM, GRU, RNN).
_DEFAULTS: dict[Cell, tuple[str, ...]] = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}

# Defaults of alpha and beta of each function; None for a parameter that it does not take, NaN for
# one that has to be given: ONNX Runtime takes 0 for it, and the specification says 1 or nothing.
_PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (math.nan, math.nan),
    "elu": (1.0, None),
    "hardsigmoid": (0.2, 0.5),
    "leakyrelu": (0.01, None),
    "relu": (None, None),
    "scaledtanh": (math.nan, math.nan),
    "sigmoid": (None, None),
    "softplus": (None, None),
    "softsign": (None, None),
    "tanh": (None, None),
    "thresholdedrelu": (math.nan, None),
}


def activations_of(cell: Cell, directions: int, attr: dict) -> tuple[tuple[Activation, ...], ...]:
    """The functions of each direction.

    A number of ``activation_alpha`` (``_beta``) goes to the next function that takes one.

    Raises
    ------
    FormError
        There are not as many functions as the node needs, more parameters than they take or fewer
        than they need, or a name is unknown.
    """
    count = len(_DEFAULTS[cell])
    names = [_function_name(name).lower() for name in attr.get("activations", ())]
    names = names or list(_DEFAULTS[cell]) * directions
    if len(names) != count * directions:
        raise FormError(f"it has {len(names)} activations, not {count * directions}")
    unknown = [name for name in names if name not in _PARAMETERS]
    if unknown:
        raise FormError(f"activation '{unknown[0]}' is none of ONNX's")
    alphas = iter([float(value) for value in attr.get("activation_alpha", ())])
    betas = iter([float(value) for value in attr.get("activation_beta", ())])
    found = [_activation(name, alphas, betas) for name in names]
    if next(alphas, None) is not None or next(betas, None) is not None:
        raise FormError("it has more activation_alpha or activation_beta than its functions take")
    return tuple(tuple(found[i : i + count]) for i in range(0, len(found), count))


def _activation(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    alpha, beta = _PARAMETERS[name]
    alpha = 0.0 if alpha is None else next(alphas, alpha)
    beta = 0.0 if beta is None else next(betas, beta)
    if math.isnan(alpha) or math.isnan(beta):
        raise FormError(f"activation '{name}' has no activation_alpha or activation_beta")
    return Activation(name, alpha, beta)


def _function_name(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


# Rearranges weights: right away where they are stored in the model, else as Relax operators.


class ArrayOperations:
    """Operations on arrays that are NumPy's or Relax expressions of static shape."""

    def __init__(self, bb: relax.BlockBuilder) -> None:
        self._bb = bb

    def given(self, value: relax.Expr) -> Any:
        """The stored array behind a constant; other expressions as they are."""
        return value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else value

    def expression(self, array: Any) -> relax.Expr:
        """A Relax expression for either kind."""
        if isinstance(array, np.ndarray):
            return relax.const(np.ascontiguousarray(array), str(array.dtype))
        return array

    def cast(self, array: Any, dtype: str) -> Any:
        """The array in another element type."""
        if isinstance(array, np.ndarray):
            return array.astype(dtype)
        same = str(array.ty.dtype) == dtype
        return array if same else self._bb.normalize(relax.op.astype(array, dtype))

    def reshape(self, array: Any, shape: Sequence[int]) -> Any:
        """The same elements in another shape."""
        if isinstance(array, np.ndarray):
            return array.reshape(shape)
        return self._bb.normalize(relax.op.reshape(array, list(shape)))

    def transpose(self, array: Any, axes: Sequence[int]) -> Any:
        """The axes in another order."""
        if isinstance(array, np.ndarray):
            return array.transpose(axes)
        return self._bb.normalize(relax.op.permute_dims(array, list(axes)))

    def padded(self, array: Any, axis: int, size: int) -> Any:
        """The array with zeros behind it along one axis."""
        shape = self.shape(array)
        if shape[axis] == size:
            return array
        if isinstance(array, np.ndarray):
            return np.pad(array, [(0, size - n if a == axis else 0) for a, n in enumerate(shape)])
        shape[axis] = size - shape[axis]
        zeros = relax.op.full(shape, relax.const(0, str(array.ty.dtype)))
        return self._bb.normalize(relax.op.concat([array, self._bb.normalize(zeros)], axis))

    def part(self, array: Any, axis: int, start: int, end: int) -> Any:
        """Elements from ``start`` to before ``end`` along one axis."""
        if isinstance(array, np.ndarray):
            return array[(slice(None),) * axis + (slice(start, end),)]
        return self._bb.normalize(relax.op.strided_slice(array, [axis], [start], [end]))

    def add(self, a: Any, b: Any) -> Any:
        """The sum of two arrays of the same kind."""
        if isinstance(a, np.ndarray):
            return a + b
        return self._bb.normalize(relax.op.add(a, b))

    @staticmethod
    def shape(array: Any) -> list[int]:
        """Its sizes, which must be known."""
        return [
            int(size) for size in (array.shape if isinstance(array, np.ndarray) else array.ty.shape)
        ]


class RecurrentWeights:
    """The weights of a layer in the order in which ``Recurrence.operands`` wants them."""

    def __init__(self, arrays: ArrayOperations, recurrence: Recurrence) -> None:
        self._arrays = arrays
        self._recurrence = recurrence

    def projection(self, w: Any) -> Any:
        """``W [directions, gates * H, I]`` as ``[I, columns of x]``."""
        blocks = self._in_blocks(w)
        size = self._arrays.shape(w)[2]
        turned = self._arrays.transpose(blocks, (4, 0, 2, 1, 3))
        columns = math.prod(self._arrays.shape(turned)[1:])
        return self._arrays.reshape(turned, [size, columns])

    def recurrent(self, r: Any) -> list[Any]:
        """``R [directions, gates * H, H]`` for each product."""
        blocks = self._arrays.padded(self._in_blocks(r), 4, self._recurrence.summed)
        turned = self._arrays.transpose(blocks, (0, 2, 1, 4, 3))
        return [
            self._arrays.part(turned, 2, product.gates[0], product.gates[-1] + 1)
            for product in self._recurrence.products()
        ]

    def of_columns(self, numbers: np.ndarray) -> np.ndarray:
        """A number for each row of ``R``, ``[directions, gates * H]``, which becomes a column."""
        blocks = self._in_blocks(numbers[..., np.newaxis])
        return np.ascontiguousarray(blocks[..., 0].transpose(0, 2, 1, 3))

    def biases(self, b: Any) -> tuple[Any, Any | None]:
        """``B [directions, 2 * gates * H]`` as what is added to ``x`` and as ``b_candidate``."""
        recurrence, arrays = self._recurrence, self._arrays
        width = recurrence.gates * recurrence.hidden
        outer, inner = arrays.part(b, 1, 0, width), arrays.part(b, 1, width, 2 * width)
        candidate = None
        if "b_candidate" in recurrence.operands():
            last = 2 * recurrence.hidden
            candidate = arrays.padded(arrays.part(inner, 1, last, width), 1, recurrence.padded)
            inner = arrays.padded(arrays.part(inner, 1, 0, last), 1, width)
        total = arrays.reshape(arrays.add(outer, inner), [recurrence.directions, width, 1])
        turned = arrays.transpose(self._in_blocks(total), (0, 2, 1, 3, 4))
        return arrays.reshape(turned, [math.prod(arrays.shape(turned))]), candidate

    def peepholes(self, p: Any) -> Any:
        """``P [directions, 3 * H]`` as ``[directions, 3, padded]``."""
        recurrence = self._recurrence
        cut = self._arrays.reshape(p, [recurrence.directions, 3, recurrence.hidden])
        return self._arrays.padded(cut, 2, recurrence.padded)

    def _in_blocks(self, weights: Any) -> Any:
        """``[directions, gates * H, n]`` as ``[directions, gates, blocks, units, n]``."""
        recurrence, arrays = self._recurrence, self._arrays
        directions, gates = recurrence.directions, recurrence.gates
        last = arrays.shape(weights)[2]
        cut = arrays.reshape(weights, [directions, gates, recurrence.hidden, last])
        padded = arrays.padded(cut, 2, recurrence.padded)
        shape = [directions, gates, recurrence.blocks, recurrence.units, last]
        return arrays.reshape(padded, shape)


_REVERSE = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}

# Types that are computed in another one.
_WIDER = {"float16": "float32", "bfloat16": "float32"}

# What a converter is told that has no stored operands: nodes by name, and arrays by name.
_NOTHING_STORED: tuple[dict, dict] = ({}, {})

_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


class _Recurrent(OnnxOpConverter):
    """One of the three; every form of opset 22, older ones are among them."""

    cell: Cell

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        given = {
            name: onnx_constant(value, params)
            for name, value in zip(_INPUTS, inputs, strict=False)
            if value is not None
        }
        return _Layer(bb, cls.cell, given, attr).converted()


class LSTM(_Recurrent):
    """Long short-term memory; outputs Y, Y_h, Y_c."""

    cell: Cell = "LSTM"


class GRU(_Recurrent):
    """Gated recurrent unit; outputs Y, Y_h."""

    cell: Cell = "GRU"


class RNN(_Recurrent):
    """The plain recurrent layer; outputs Y, Y_h."""

    cell: Cell = "RNN"


class _Integers(NamedTuple):
    """Weights ``[directions, gates * H, n]`` as whole numbers of the steps of their rows."""

    numbers: np.ndarray
    steps: np.ndarray


def _integers(weights: np.ndarray, steps: Sequence[float]) -> _Integers:
    """In int8 where all fit, else in int16: a byte less a zero point has nine bits."""
    row_steps = np.asarray(steps, np.float32).reshape(weights.shape[:2])
    divisors = np.where(row_steps == 0, np.float32(1), row_steps)[..., np.newaxis]
    numbers = np.rint(weights / divisors)
    is_byte = numbers.min(initial=0) >= -128 and numbers.max(initial=0) <= 127
    return _Integers(numbers.astype(np.int8 if is_byte else np.int16), row_steps)


class _Layer:
    """A node with its inputs by name."""

    def __init__(
        self, bb: relax.BlockBuilder, cell: Cell, given: dict[str, relax.Expr], attr: dict
    ) -> None:
        self.bb = bb
        self.arrays = ArrayOperations(bb)
        self.given = given
        self.dtype = str(given["X"].ty.dtype)
        self.computed = _WIDER.get(self.dtype, self.dtype)
        self.integers = {
            name: _integers(self._array(name), attr[steps])
            for name, steps in (("W", INPUT_STEPS), ("R", RECURRENT_STEPS))
            if steps in attr
        }
        self.recurrence = _recurrence(cell, given, attr)
        given["X"] = self._with_symbolic_sizes(given["X"])
        self.steps, self.batch = _steps_and_batch(given["X"], self.recurrence.batch_first)

    def converted(self) -> relax.Expr:
        """The layer's outputs."""
        recurrence = self.recurrence
        weights = RecurrentWeights(self.arrays, recurrence)
        operands = {"x": self._projected(weights)}
        if recurrence.integer_weights:
            numbers, steps = self.integers["R"]
            recurrent = weights.recurrent(numbers)
            operands["r_scale"] = weights.of_columns(steps)
            operands["r_sums"] = weights.of_columns(numbers.sum(2, dtype=np.int32))
        else:
            recurrent = weights.recurrent(self._array("R"))
        for product, array in zip(recurrence.products(), recurrent, strict=True):
            operands[product.weights] = array
        if "b_candidate" in recurrence.operands():
            operands["b_candidate"] = self._candidate_bias(weights)
        if recurrence.peepholes:
            operands["peepholes"] = weights.peepholes(self._array("P"))
        if recurrence.lengths:
            lengths = self.arrays.given(self.given["sequence_lens"])
            operands["lengths"] = self._matched(self.arrays.cast(lengths, "int32"), [self.batch])
        for name in ("initial_h", "initial_c"):
            if name in recurrence.operands():
                operands[name] = self._matched(self._array(name), self._state_shape())
        results = self._call(operands)
        outputs = [
            self.arrays.cast(self.bb.emit(relax.TupleGetItem(results, i)), self.dtype)
            for i in range(len(recurrence.results()))
        ]
        return relax.Tuple(outputs)

    def _with_symbolic_sizes(self, x: relax.Expr) -> relax.Expr:
        """The input, with names for its sizes where not even those are known (after an If)."""
        if isinstance(x.ty.shape, relax.ShapeExpr):
            return x
        sizes = [tirx.Var(name, "int64") for name in ("steps", "batch")]
        features = _sizes(self.given["W"], "W")[-1]
        return self.bb.match_cast(x, relax.TensorType([*sizes, features], self.dtype))

    def _array(self, name: str) -> Any:
        return self.arrays.cast(self.arrays.given(self.given[name]), self.computed)

    def _projected(self, weights: RecurrentWeights) -> relax.Expr:
        """All steps' inputs times their weights, with the biases outside of the reset gate."""
        bb, arrays = self.bb, self.arrays
        x = arrays.expression(self._array("X"))
        if "W" in self.integers:
            product = self._projected_in_integers(weights, x, self.integers["W"])
        else:
            w = arrays.expression(weights.projection(self._array("W")))
            product = bb.normalize(relax.op.matmul(x, w))
        if "B" not in self.given:
            return product
        bias, _ = weights.biases(self._array("B"))
        return bb.normalize(relax.op.add(product, arrays.expression(bias)))

    def _projected_in_integers(
        self, weights: RecurrentWeights, x: relax.Expr, integers: _Integers
    ) -> relax.Expr:
        """The same of an input that is rounded to 8 bits, as MatMulInteger multiplies."""
        bb = self.bb
        w = weights.projection(integers.numbers)
        steps = weights.projection(integers.steps[..., np.newaxis]).reshape(-1)
        quantized = DynamicQuantizeLinear._impl_v11(bb, [x], {}, _NOTHING_STORED)
        rounded, scale, zero_point = quantized.fields
        total = centred_product(bb, bb.emit(rounded), zero_point, w)
        factor = bb.emit(relax.op.multiply(scale, relax.const(steps, "float32")))
        sums = bb.normalize(relax.op.astype(total, "float32"))
        return bb.normalize(relax.op.multiply(sums, factor))

    def _candidate_bias(self, weights: RecurrentWeights) -> Any:
        if "B" in self.given:
            return weights.biases(self._array("B"))[1]
        shape = [self.recurrence.directions, self.recurrence.padded]
        return self.bb.normalize(relax.op.full(shape, relax.const(0, self.computed)))

    def _state_shape(self) -> list[Any]:
        directions = self.recurrence.directions
        outer = [directions, self.batch]
        return [*(outer[::-1] if self.recurrence.batch_first else outer), self.recurrence.hidden]

    def _matched(self, array: Any, shape: list[Any]) -> relax.Expr:
        """The array, which a check at run time ensures to be of ``shape``."""
        value = self.arrays.expression(array)
        wanted = relax.TensorType(shape, str(value.ty.dtype))
        found = value.ty.shape
        if isinstance(found, relax.ShapeExpr):
            if structural_equal(found, wanted.shape):
                return value
            _require_same(list(found.values), list(wanted.shape.values))
        return self.bb.match_cast(self.bb.emit(value), wanted)

    def _call(self, operands: dict[str, Any]) -> relax.Var:
        recurrence = self.recurrence
        names = recurrence.operands()[: -len(recurrence.results())]
        values = [self.arrays.expression(operands[name]) for name in names]
        state = self._state_shape()
        y = [self.steps, recurrence.directions, self.batch, recurrence.hidden]
        if recurrence.batch_first:
            y = [self.batch, self.steps, recurrence.directions, recurrence.hidden]
        shapes = [y] + [state] * (len(recurrence.results()) - 1)

        def kernel(*tensors: te.Tensor) -> Any:
            def body(ins: Any, outs: Any) -> tirx.Stmt:
                arrays = dict(zip(recurrence.operands(), [*ins, *outs], strict=True))
                return recurrence_code(RecurrenceOperands(recurrence, arrays), RecurrenceLoops())

            return te.extern(
                shapes,
                list(tensors),
                body,
                name=recurrence.cell.lower(),
                dtype=[self.computed] * len(shapes),
                attrs={ANNOTATION: recurrence.annotation()},
            )

        return self.bb.emit_te(kernel, *values, primfunc_name_hint=recurrence.cell.lower())


def _recurrence(cell: Cell, given: dict[str, relax.Expr], attr: dict) -> Recurrence:
    direction = _text(attr.get("direction", "forward"))
    if direction not in _REVERSE:
        raise FormError(f"direction is '{direction}', not one of {', '.join(_REVERSE)}")
    reverse = _REVERSE[direction]
    clip = attr.get("clip")
    recurrence = Recurrence(
        cell,
        _hidden_size(given["R"], attr),
        reverse,
        activations_of(cell, len(reverse), attr),
        clip=float(clip) if clip else None,
        linear_before_reset=cell == "GRU" and bool(attr.get("linear_before_reset", 0)),
        input_forget=cell == "LSTM" and bool(attr.get("input_forget", 0)),
        batch_first=bool(attr.get("layout", 0)),
        initial_h="initial_h" in given,
        initial_c=cell == "LSTM" and "initial_c" in given,
        lengths="sequence_lens" in given,
        peepholes=cell == "LSTM" and "P" in given,
        quantized_state=bool(attr.get(QUANTIZED_STATE, 0)),
        integer_weights=RECURRENT_STEPS in attr,
    )
    _require_shapes(recurrence, given)
    return recurrence


def _hidden_size(r: relax.Expr, attr: dict) -> int:
    hidden = _sizes(r, "R")[-1]
    stated = attr.get("hidden_size")
    if stated is not None and int(stated) != hidden:
        raise FormError(f"hidden_size is {stated}, but R has {hidden} columns")
    return hidden


def _require_shapes(recurrence: Recurrence, given: dict[str, relax.Expr]) -> None:
    directions, hidden = recurrence.directions, recurrence.hidden
    width = recurrence.gates * hidden
    wanted: dict[str, list[int]] = {
        "W": [directions, width, _sizes(given["W"], "W")[-1]],
        "R": [directions, width, hidden],
        "B": [directions, 2 * width],
    }
    if recurrence.peepholes:
        wanted["P"] = [directions, 3 * hidden]
    for name, shape in wanted.items():
        if name in given and _sizes(given[name], name) != shape:
            raise FormError(f"{name} has shape {_sizes(given[name], name)}, not {shape}")


def _sizes(value: relax.Expr, name: str) -> list[int]:
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr) or not all(
        isinstance(size, tirx.IntImm) for size in shape.values
    ):
        raise FormError(f"the shape of its weights {name} is not known")
    return [int(size) for size in shape.values]


def _steps_and_batch(x: relax.Expr, batch_first: bool) -> tuple[Any, Any]:
    values = x.ty.shape.values
    if len(values) != 3:
        raise FormError(f"its input X has {len(values)} axes, not 3")
    first, second, _ = values
    return (second, first) if batch_first else (first, second)


def _require_same(given: list[Any], wanted: list[Any]) -> None:
    """Raises FormError for shapes that differ whatever the symbolic sizes are."""
    fits = len(given) == len(wanted) and all(
        int(a) == int(b)
        for a, b in zip(given, wanted, strict=True)
        if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm)
    )
    if not fits:
        raise FormError(f"a state or its lengths have shape {given}, not {wanted}")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
