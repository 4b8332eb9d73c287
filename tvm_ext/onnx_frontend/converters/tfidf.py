"""TfIdfVectorizer on integers; strings are counted on the host."""

import itertools
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

# Of the result; a table with a row for each n-gram is made.
MOST_COLUMNS = 1 << 20


class TfIdfVectorizer(OnnxOpConverter):
    """How often each n-gram of the pool occurs in a row, weighted.

    An n-gram of more than one element may leave out the same number of elements, from 0 to
    ``max_skip_count``, between each two of its own; every occurrence counts.
    """

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        sizes = sizes_of(x)
        if len(sizes) not in (1, 2) or not isinstance(sizes[-1], int):
            raise FormError("its input has no static number of columns, expected [C] or [B, C]")
        rows = bb.emit(relax.op.reshape(x, (1 if len(sizes) == 1 else sizes[0], sizes[-1])))
        rows = bb.emit(relax.op.astype(rows, "int64"))
        indexes = np.array(attr["ngram_indexes"], np.int64)
        if indexes.size and not 0 <= indexes.min() <= indexes.max() < MOST_COLUMNS:
            raise FormError(
                f"its ngram_indexes reach from {indexes.min()} to {indexes.max()}, expected "
                f"columns from 0 to {MOST_COLUMNS - 1}"
            )
        total = None
        for grams, first in _pools(attr):
            distances = 1 if grams.shape[1] == 1 else int(attr["max_skip_count"]) + 1
            counts = bb.emit_te(_counted, rows, relax.const(grams, "int64"), distances)
            place = np.zeros((len(grams), indexes.max() + 1), np.float32)
            place[np.arange(len(grams)), indexes[first : first + len(grams)]] = 1
            counts = bb.emit(relax.op.matmul(counts, relax.const(place, "float32")))
            total = counts if total is None else bb.emit(relax.op.add(total, counts))
        if total is None:
            raise FormError("its pool has no n-gram of a length that it counts")
        result = _weighted(bb, total, attr)
        return result if len(sizes) == 2 else bb.emit(relax.op.reshape(result, (-1,)))


def _pools(attr: dict) -> list[tuple[np.ndarray, int]]:
    """The counted n-grams, int64[n-grams, n], by n; with the number of those in front of them."""
    pool = np.array(attr.get("pool_int64s", ()), np.int64)
    starts = [*attr["ngram_counts"], len(pool)]
    shortest, longest = attr["min_gram_length"], attr["max_gram_length"]
    found, first = [], 0
    for length, (start, end) in enumerate(itertools.pairwise(starts), 1):
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            raise FormError(f"its ngram_counts {starts[:-1]} do not fit its pool of {len(pool)}")
        grams = pool[start:end].reshape(-1, length)
        if len(grams) and shortest <= length <= longest:
            found.append((grams, first))
        first += len(grams)
    if first != len(attr["ngram_indexes"]):
        raise FormError(f"it has {first} n-grams and {len(attr['ngram_indexes'])} ngram_indexes")
    return found


def _counted(rows: te.Tensor, grams: te.Tensor, distances: int) -> te.Tensor:
    """float32[rows, n-grams] from int64[rows, columns] and int64[n-grams, n]."""
    columns, length = int(rows.shape[1]), int(grams.shape[1])
    start = te.reduce_axis((0, columns), name="start")
    skipped = te.reduce_axis((0, distances), name="skipped")

    def entry(row: tirx.Var, gram: tirx.Var) -> tirx.Expr:
        equal = []
        for item in range(length):
            place = start + (skipped + 1) * item
            inside = tirx.min(place, columns - 1)
            equal.append(tirx.all(place < columns, rows[row, inside] == grams[gram, item]))
        return te.sum(tirx.all(*equal).astype("float32"), axis=[start, skipped])

    return te.compute((rows.shape[0], grams.shape[0]), entry, name="ngrams")


def _weighted(bb: relax.BlockBuilder, counts: relax.Expr, attr: dict) -> relax.Expr:
    mode = text(attr, "mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise FormError(f"its mode '{mode}' is unknown")
    if mode == "IDF":
        counts = bb.emit(relax.op.minimum(counts, relax.const(1, "float32")))
    weights = np.array(attr.get("weights", ()), np.float32)
    if mode == "TF" or not weights.size:
        return counts
    # The weights are those of the n-grams, in the order of the pool.
    columns = np.ones(max(attr["ngram_indexes"]) + 1, np.float32)
    if weights.size != len(attr["ngram_indexes"]):
        raise FormError(f"it has {weights.size} weights and {len(attr['ngram_indexes'])} n-grams")
    columns[list(attr["ngram_indexes"])] = weights
    return bb.emit(relax.op.multiply(counts, relax.const(columns, "float32")))
