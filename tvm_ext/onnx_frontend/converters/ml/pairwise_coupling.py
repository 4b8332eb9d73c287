"""Probabilities of classes from those of pairs of classes.

Platt's sigmoid gives each pair its probability; Wu, Lin and Weng's second method couples them
("Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004, algorithm 2),
with the tolerance and the number of rounds of LIBSVM and ONNX Runtime.
"""

from itertools import combinations
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array

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
        def against(i: int, j: int, row: Any) -> Any:
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
