"""SVMRegressor and SVMClassifier of ai.onnx.ml: kernels of the rows with the support vectors."""

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array
from tvm_ext.onnx_frontend.converters.ml.scores_and_labels import (
    chosen,
    floats,
    integer_labels,
    one_of_two,
    post_transformed,
)
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

# Probabilities of classes from those of pairs of classes.
#
# Platt's sigmoid gives each pair its probability; Wu, Lin and Weng's second method couples them
# ("Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004, algorithm
# 2), with the tolerance and the number of rounds of LIBSVM and ONNX Runtime.


_ROUNDS = 100
_TOLERANCE = 0.005
_LEAST = 1e-7


def coupled_probabilities(
    bb: relax.BlockBuilder, pairs: relax.Expr, slopes: np.ndarray, offsets: np.ndarray, classes: int
) -> relax.Expr:
    """``(rows, classes)`` from scores of the pairs ``i < j``, ``(rows, pairs)``, float32.

    Raises
    ------
    FormError
        There are fewer slopes or offsets than pairs.
    """
    places = list(combinations(range(classes), 2))
    if min(slopes.size, offsets.size) < len(places):
        raise FormError(
            f"it has {slopes.size} prob_a and {offsets.size} prob_b, expected {len(places)}"
        )
    scale, shift = (relax.const(a[: len(places)], "float32") for a in (slopes, offsets))
    steep = bb.emit(relax.op.add(bb.emit(relax.op.multiply(pairs, scale)), shift))
    wins = bb.emit(relax.op.sigmoid(bb.emit(relax.op.negative(steep))))
    wins = bb.emit(relax.op.clip(wins, _LEAST, 1 - _LEAST))
    rows = sizes_of(pairs)[0]
    result = ((rows, classes), "float32")
    return emit_loops(bb, "pairwise_coupling", [wins], [result], _coupling(rows, classes))[0]


def _coupling(rows: Any, classes: int) -> Any:
    places = {pair: place for place, pair in enumerate(combinations(range(classes), 2))}
    every = range(classes)

    def body(wins: Any, p: Any) -> None:
        def against(i: int, j: int, row: Any) -> tirx.Expr:
            """How probable ``i`` is against ``j``."""
            if i < j:
                return wins[row, places[i, j]]
            return tirx.const(1.0, "float32") - wins[row, places[j, i]]

        with T.serial(0, p.shape[0]) as row:
            q = local_array(classes * classes, "float32")
            moved = local_array(classes, "float32")
            state = local_array(2, "float32")
            for i in every:
                p[row, i] = T.float32(1 / classes)
                q[i * classes + i] = T.float32(0)
                for j in every:
                    if j != i:
                        other = against(j, i, row)
                        q[i * classes + i] = q[i * classes + i] + other * other
                        q[i * classes + j] = -other * against(i, j, row)
            state[1] = T.float32(1)
            with T.serial(0, _ROUNDS), T.If(state[1] > T.float32(0)), T.Then():
                _round(p, row, q, moved, state, classes)

    return body


def _round(p: Any, row: Any, q: Any, moved: Any, state: Any, classes: int) -> None:
    """One round for one row; ``state`` is (p Q p, whether another round is needed)."""
    one, two = T.float32(1), T.float32(2)
    state[0] = T.float32(0)
    with T.serial(0, classes) as i:
        moved[i] = T.float32(0)
        with T.serial(0, classes) as j:
            moved[i] = moved[i] + q[i * classes + j] * p[row, j]
        state[0] = state[0] + p[row, i] * moved[i]
    state[1] = T.float32(0)
    with T.serial(0, classes) as i:
        state[1] = tirx.max(state[1], tirx.abs(moved[i] - state[0]))
    with T.If(state[1] < T.float32(_TOLERANCE / classes)):
        with T.Then():
            state[1] = T.float32(0)
        with T.Else(), T.serial(0, classes) as i:
            step = local_array(1, "float32")
            step[0] = (state[0] - moved[i]) / q[i * classes + i]
            p[row, i] = p[row, i] + step[0]
            grown = step[0] * q[i * classes + i] + two * moved[i]
            state[0] = (state[0] + step[0] * grown) / (one + step[0]) / (one + step[0])
            with T.serial(0, classes) as j:
                moved[j] = (moved[j] + step[0] * q[i * classes + j]) / (one + step[0])
                p[row, j] = p[row, j] / (one + step[0])


class SVMRegressor(OnnxOpConverter):
    """``sum of coefficient * kernel(x, vector) + rho``; 1 or -1 for a model of one class.

    There is no transform at the end, as in ONNX Runtime, whatever ``post_transform`` says.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = _float32_rows(bb, inputs[0])
        vectors = int(attr.get("n_supports", 0))
        coefficients = np.array(attr["coefficients"], np.float32)
        if vectors > 0:
            x = _kernels(bb, x, _Kernel.of(attr), _support_vectors(attr, vectors))
        score = _product(bb, x, coefficients.reshape(-1, 1), _rho(attr, 1))
        if not attr.get("one_class", 0):
            return score
        inside = bb.emit(relax.op.greater(score, relax.const(0.0, "float32")))
        return bb.emit(
            relax.op.where(inside, relax.const(1.0, "float32"), relax.const(-1.0, "float32"))
        )


class SVMClassifier(OnnxOpConverter):
    """Labels, which must be integers, and scores, as ONNX Runtime gives them.

    With support vectors every pair of classes has a score, and the label is the class that wins
    the most pairs. The scores are those of the pairs, or with ``prob_a`` and ``prob_b``
    probabilities of the classes. Without support vectors there is one product for each class.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        labels = integer_labels(attr, "classlabels_ints")
        x = _float32_rows(bb, inputs[0])
        if not attr.get("vectors_per_class"):
            return _linear(bb, x, attr, labels)
        pairs = _pair_scores(bb, x, attr, len(labels))
        label = _label_of_pairs(bb, pairs, labels)
        return relax.Tuple([label, _scores_of_pairs(bb, pairs, attr, len(labels))])


@dataclass(frozen=True)
class _Kernel:
    kind: str
    gamma: float
    coef0: float
    degree: float

    @classmethod
    def of(cls, attr: dict) -> "_Kernel":
        given = [float(value) for value in attr.get("kernel_params") or (0.0, 0.0, 0.0)]
        if len(given) < 3:
            raise FormError(f"its kernel_params are {len(given)} numbers, expected three")
        return cls(text(attr, "kernel_type", "LINEAR"), *given[:3])


def _kernels(
    bb: relax.BlockBuilder, x: relax.Expr, kernel: _Kernel, vectors: np.ndarray
) -> relax.Expr:
    """Of every row of ``x`` with every row of ``vectors``: ``(rows of x, rows of vectors)``."""
    _require_columns(x, vectors.shape[1])
    transposed = relax.const(np.ascontiguousarray(vectors.T), "float32")
    if kernel.kind == "RBF":
        distances = bb.emit_te(_squared_distances, x, transposed)
        return bb.emit(
            relax.op.exp(
                bb.emit(relax.op.multiply(distances, relax.const(-kernel.gamma, "float32")))
            )
        )
    products = bb.emit(relax.op.matmul(x, transposed))
    if kernel.kind == "LINEAR":
        return products
    scaled = bb.emit(relax.op.multiply(products, relax.const(kernel.gamma, "float32")))
    shifted = bb.emit(relax.op.add(scaled, relax.const(kernel.coef0, "float32")))
    if kernel.kind == "SIGMOID":
        return bb.emit(relax.op.tanh(shifted))
    if kernel.kind != "POLY":
        raise FormError(f"its kernel_type '{kernel.kind}' is unknown")
    return _power(bb, shifted, kernel.degree)


def _squared_distances(x: te.Tensor, vectors: te.Tensor) -> te.Tensor:
    """By differences: a sum of squares and products would cancel for rows near a vector."""
    column = te.reduce_axis((0, vectors.shape[0]), name="column")

    def squared(row: Any, vector: Any) -> tirx.Expr:
        difference = x[row, column] - vectors[column, vector]
        return te.sum(difference * difference, axis=column)

    return te.compute((x.shape[0], vectors.shape[1]), squared, name="squared_distances")


def _power(bb: relax.BlockBuilder, x: relax.Expr, degree: float) -> relax.Expr:
    if degree in (1, 2, 3):
        result = x
        for _ in range(int(degree) - 1):
            result = bb.emit(relax.op.multiply(result, x))
        return result
    return bb.emit(relax.op.power(x, relax.const(degree, "float32")))


def _pair_scores(bb: relax.BlockBuilder, x: relax.Expr, attr: dict, classes: int) -> relax.Expr:
    """A score for each pair of classes ``i < j``, ``(rows, pairs)``, above 0 where ``i`` wins.

    Row ``j - 1`` of the coefficients has those of class ``i``'s vectors against ``j``, row ``i``
    those of class ``j``'s against ``i``: one column each of a matrix.
    """
    counts = [int(count) for count in attr["vectors_per_class"]]
    if len(counts) != classes:
        raise FormError(f"it has {len(counts)} vectors_per_class and {classes} labels")
    ends = np.cumsum(counts)
    owned = [slice(end - count, end) for count, end in zip(counts, ends, strict=True)]
    total, pairs = int(ends[-1]), list(combinations(range(classes), 2))
    given = np.array(attr["coefficients"], np.float32)
    if given.size < (classes - 1) * total:
        raise FormError(
            f"it has {given.size} coefficients, expected {(classes - 1) * total} for {total} "
            f"vectors of {classes} classes"
        )
    coefficients = given[: (classes - 1) * total].reshape(classes - 1, total)
    matrix = np.zeros((total, len(pairs)), np.float32)
    for place, (i, j) in enumerate(pairs):
        matrix[owned[i], place] = coefficients[j - 1, owned[i]]
        matrix[owned[j], place] = coefficients[i, owned[j]]
    kernels = _kernels(bb, x, _Kernel.of(attr), _support_vectors(attr, total))
    return _product(bb, kernels, matrix, _rho(attr, len(pairs)))


def _label_of_pairs(bb: relax.BlockBuilder, pairs: relax.Expr, labels: np.ndarray) -> relax.Expr:
    if len(labels) == 2:
        return one_of_two(bb, pairs, 0.0, int(labels[1]), int(labels[0]))
    gains = np.zeros((sizes_of(pairs)[1], len(labels)), np.float32)
    starts = np.zeros(len(labels), np.float32)
    for place, (i, j) in enumerate(combinations(range(len(labels)), 2)):
        gains[place, i], gains[place, j] = 1, -1
        starts[j] += 1
    wins = bb.emit(relax.op.greater(pairs, relax.const(0.0, "float32")))
    votes = _product(bb, bb.emit(relax.op.astype(wins, "float32")), gains, starts)
    return chosen(bb, votes, labels)


def _scores_of_pairs(
    bb: relax.BlockBuilder, pairs: relax.Expr, attr: dict, classes: int
) -> relax.Expr:
    post = text(attr, "post_transform", "NONE")
    if attr.get("prob_a"):
        slopes, offsets = (
            np.array(attr.get(name, ()), np.float32) for name in ("prob_a", "prob_b")
        )
        probabilities = coupled_probabilities(bb, pairs, slopes, offsets, classes)
        return post_transformed(bb, probabilities, post)
    if classes > 2:
        return post_transformed(bb, pairs, post)
    if post == "PROBIT":
        raise FormError(
            "its post_transform PROBIT is of one score for two classes, of which ONNX Runtime "
            "leaves the second undefined; expected another one"
        )
    # Of one score ONNX Runtime knows this transform alone.
    if post == "LOGISTIC":
        pairs = bb.emit(relax.op.sigmoid(pairs))
    if post == "NONE":
        other = bb.emit(relax.op.negative(pairs))
    else:
        other = bb.emit(relax.op.subtract(relax.const(1.0, "float32"), pairs))
    return bb.emit(relax.op.concat([other, pairs], axis=1))


def _linear(bb: relax.BlockBuilder, x: relax.Expr, attr: dict, labels: np.ndarray) -> relax.Tuple:
    coefficients = np.array(attr["coefficients"], np.float32)
    if coefficients.size % len(labels):
        raise FormError(f"it has {coefficients.size} coefficients for {len(labels)} classes")
    matrix = coefficients.reshape(len(labels), -1).T
    scores = _product(bb, x, np.ascontiguousarray(matrix), _rho(attr, 1))
    label = chosen(bb, scores, labels)
    if len(labels) == 2 and not attr.get("prob_a"):
        label = _second_above(bb, scores, label, bool((coefficients >= 0).all()), int(labels[1]))
    post = text(attr, "post_transform", "NONE")
    if len(labels) > 1 or post == "PROBIT":
        scores = post_transformed(bb, scores, post)
    return relax.Tuple([label, scores])


def _second_above(
    bb: relax.BlockBuilder, scores: relax.Expr, label: relax.Expr, positive: bool, second: int
) -> relax.Expr:
    """ONNX Runtime takes the second of two classes wherever the larger score is high enough."""
    largest = bb.emit(relax.op.max(scores, axis=-1))
    compare = relax.op.greater_equal if positive else relax.op.greater
    above = bb.emit(compare(largest, relax.const(0.5 if positive else 0.0, "float32")))
    return bb.emit(relax.op.where(above, relax.const(second, "int64"), label))


def _float32_rows(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    x = floats(bb, x)
    return x if str(x.ty.dtype) == "float32" else bb.emit(relax.op.astype(x, "float32"))


def _support_vectors(attr: dict, count: int) -> np.ndarray:
    given = np.array(attr.get("support_vectors", ()), np.float32)
    if not given.size or given.size % count:
        raise FormError(f"it has {given.size} numbers for {count} support_vectors")
    return given.reshape(count, -1)


def _rho(attr: dict, count: int) -> np.ndarray:
    given = np.array(attr.get("rho", ()), np.float32)
    if given.size < count:
        raise FormError(f"it has {given.size} values of rho, expected {count}")
    return given[:count]


def _product(
    bb: relax.BlockBuilder, x: relax.Expr, matrix: np.ndarray, added: np.ndarray
) -> relax.Expr:
    _require_columns(x, len(matrix))
    product = bb.emit(relax.op.matmul(x, relax.const(matrix, "float32")))
    return bb.emit(relax.op.add(product, relax.const(added, "float32")))


def _require_columns(x: relax.Expr, count: int) -> None:
    columns = sizes_of(x)[1]
    if isinstance(columns, int) and columns != count:
        raise FormError(f"it expects {count} columns, and its input has {columns} columns")
