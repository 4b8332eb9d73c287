"""Attention as one function: what it computes, and the tensor expression that says so."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import tvm
from tvm import te, tirx

# The attribute of a function that computes attention: what ``to_attribute`` wrote.
ATTRIBUTE = "tvm_ext.attention"

MaskKind = Literal["add", "keep", "drop"]


@dataclass(frozen=True)
class Mask:
    """A tensor that changes the scores; its axes, from the last, are keys, queries, heads, batch.

    Attributes
    ----------
    kind : str
        "add": it is added. "keep": where it is false the score becomes ``fill``. "drop": where it
        is true the score becomes ``fill``.
    fill : float
        What replaces a score.
    axes : str
        A letter for each axis: b, h, q, k. An axis of size 1 is the same for all.
    """

    kind: MaskKind
    axes: str
    fill: float = 0.0


@dataclass(frozen=True)
class AttentionCompute:
    """``softmax(masked(scale * Q K^T)) V`` for every batch and head.

    Attributes
    ----------
    query, key, value, output : str
        A letter for each axis of the tensor as it lies in memory: b for the batch, h for heads, s
        for positions, d for the elements of a head. Without h there is one head.
    scale : float
        Above zero.
    group : int
        Heads of the query that share one head of keys and values.
    masks : tuple[Mask, ...]
        In the order in which they change the scores.
    causal : int or None
        When given, query i sees keys up to ``i + causal`` only.
    zero_rows : bool
        Whether a query that sees no key gives zeros; it gives NaN otherwise.
    heads : int or None
        Heads of the query; all that its tensor has where it is None.
    first_heads : tuple[int, int, int]
        Which head of their tensors the query, the key and the value begin with: all three may be
        one tensor, as one product gives it.
    dtype : str
        Of the result.
    cap : float or None
        When given, ``cap * tanh(score / cap)`` takes the place of a score, ahead of all masks.
    sink : str or None
        When given, a tensor behind the masks has a score that joins the softmax and has no value
        (an attention sink: Xiao et al., "Efficient streaming language models", 2023): its axes,
        as a mask's, of which those of queries and keys are of size 1.
    held : bool
        Whether keys and values lie in buffers with room for more of them: how many there are is
        then a number, the function's last parameter but one.
    """

    query: str
    key: str
    value: str
    output: str
    scale: float
    dtype: str
    group: int = 1
    masks: tuple[Mask, ...] = ()
    causal: int | None = None
    zero_rows: bool = False
    heads: int | None = None
    first_heads: tuple[int, int, int] = (0, 0, 0)
    held: bool = False
    cap: float | None = None
    sink: str | None = None

    def to_attribute(self) -> str:
        """The description as text, to be kept at the function."""
        return json.dumps(asdict(self))

    @classmethod
    def from_attribute(cls, text: str) -> "AttentionCompute":
        """What ``to_attribute`` wrote."""
        given = json.loads(text)
        masks = tuple(Mask(**mask) for mask in given.pop("masks"))
        first_heads = tuple(given.pop("first_heads"))
        return cls(**given, masks=masks, first_heads=first_heads)

    def output_shape(self, query: Sequence[Any], value: Sequence[Any]) -> list[Any]:
        """The result's shape for operands of these shapes."""
        # The result may have an axis for the one head that the query has none for.
        sizes = {"h": 1, **dict(zip(self.query, query, strict=True))}
        sizes["d"] = value[self.value.index("d")]
        if self.heads is not None:
            sizes["h"] = self.heads
        return [sizes[letter] for letter in self.output]

    def function(self, shapes: Sequence[Sequence[Any]], dtypes: Sequence[str]) -> tirx.PrimFunc:
        """The function of query, key, value, masks and sink; the result is its last parameter."""
        names = ["query", "key", "value", *(f"mask{i}" for i in range(len(self.masks)))]
        names += ["sink"] * (self.sink is not None)
        inputs = [
            te.placeholder(shape, dtype, name)
            for shape, dtype, name in zip(shapes, dtypes, names, strict=True)
        ]
        keys = tirx.Var("keys", "int64") if self.held else None
        numbers = [] if keys is None else [keys]
        params = [*inputs, *numbers, self.compute(*inputs, keys=keys)]
        func = te.create_prim_func(params).without_attr("global_symbol")
        return func.with_attr({ATTRIBUTE: self.to_attribute(), "op_pattern": _OPAQUE})

    def compute(
        self,
        query: te.Tensor,
        key: te.Tensor,
        value: te.Tensor,
        *others: Any,
        keys: tirx.Var | None = None,
    ) -> te.Tensor:
        """The tensor expression, with scores and sums in float32.

        ``others`` are the masks, and behind them the sink if there is one. ``keys`` is how many
        keys there are, where the tensors have room for more.
        """
        masks = others[: len(self.masks)]
        sizes = dict(zip(self.query, query.shape, strict=True))
        batch, rows = sizes["b"], sizes["s"]
        heads = sizes.get("h", 1) if self.heads is None else self.heads
        first_query, first_key, first_value = self.first_heads
        columns = key.shape[self.key.index("s")] if keys is None else keys
        step = te.reduce_axis((0, sizes["d"]), "step")

        def product(b: tvm.ir.Expr, h: tvm.ir.Expr, i: tvm.ir.Expr, j: tvm.ir.Expr) -> tvm.ir.Expr:
            left = _at(query, self.query, b=b, h=h + first_query, s=i, d=step)
            right = _at(key, self.key, b=b, h=h // self.group + first_key, s=j, d=step)
            return te.sum(left.astype("float32") * right.astype("float32"), axis=step)

        products = te.compute((batch, heads, rows, columns), product, "products")
        scores = te.compute(
            products.shape,
            lambda b, h, i, j: self._masked(products(b, h, i, j), masks, b, h, i, j),
            "scores",
        )
        column = te.reduce_axis((0, columns), "column")
        highest = te.compute(
            (batch, heads, rows), lambda b, h, i: te.max(scores(b, h, i, column), column), "highest"
        )
        if self.sink is not None:
            seen = highest
            highest = te.compute(
                seen.shape, lambda *at: tirx.max(seen(*at), self._sink(others[-1], *at)), "shift"
            )
        weights = te.compute(
            products.shape,
            lambda b, h, i, j: te.exp(scores(b, h, i, j) - highest(b, h, i)),
            "weights",
        )
        other = te.reduce_axis((0, columns), "other")
        totals = te.compute(
            (batch, heads, rows), lambda b, h, i: te.sum(weights(b, h, i, other), other), "totals"
        )
        if self.sink is not None:
            counted = totals
            totals = te.compute(
                counted.shape,
                lambda *at: counted(*at) + te.exp(self._sink(others[-1], *at) - highest(*at)),
                "totals_with_sink",
            )
        last = te.reduce_axis((0, columns), "last")

        def element(*at: Any) -> tvm.ir.Expr:
            place = dict(zip(self.output, at, strict=True))
            b, h, i = place["b"], place.get("h", 0), place["s"]
            held = _at(
                value, self.value, b=b, h=h // self.group + first_value, s=last, d=place["d"]
            )
            return te.sum(weights(b, h, i, last) * held.astype("float32"), axis=last)

        shape = self.output_shape(query.shape, value.shape)
        sums = te.compute(shape, element, "sums")

        def finished(*at: Any) -> tvm.ir.Expr:
            place = dict(zip(self.output, at, strict=True))
            row = (place["b"], place.get("h", 0), place["s"])
            result = sums(*at) / totals(*row)
            if self.zero_rows:
                lowest = tirx.min_value("float32")
                result = te.if_then_else(highest(*row) < lowest, tirx.const(0.0), result)
            return result.astype(self.dtype)

        return te.compute(shape, finished, "attention")

    def _sink(self, sink: te.Tensor, *at: Any) -> tvm.ir.Expr:
        """The sink's score for a batch, a head and a query."""
        place = dict(zip("bhqk", (*at, 0), strict=True))
        return _at(sink, self.sink or "", **place).astype("float32")

    def _masked(self, score: tvm.ir.Expr, masks: Sequence[Any], *at: Any) -> tvm.ir.Expr:
        place = dict(zip("bhqk", at, strict=True))
        score = scaled_score(score, self)
        for tensor, mask in zip(masks, self.masks, strict=True):
            given = _at(tensor, mask.axes, **place)
            score = masked_score(score, given, mask)
        if self.causal is None:
            return score
        below = tirx.const(float("-inf"), "float32")
        return te.if_then_else(place["k"] <= place["q"] + self.causal, score, below)


# TVM's number for a kernel that nothing joins: its attribute ``op_pattern``.
_OPAQUE = 8


def scaled_score(product: tvm.ir.Expr, compute: AttentionCompute) -> tvm.ir.Expr:
    """The score of a product of float32, ahead of all masks."""
    if compute.cap is None:
        return product * tirx.const(compute.scale, "float32")
    share = product * tirx.const(compute.scale / compute.cap, "float32")
    return tirx.tanh(share) * tirx.const(compute.cap, "float32")


def masked_score(score: tvm.ir.Expr, given: tvm.ir.Expr, mask: Mask) -> tvm.ir.Expr:
    """A score of float32 after one mask, of which ``given`` is the element for it."""
    if mask.kind == "add":
        return score + given.astype("float32")
    fill = tirx.const(mask.fill, "float32")
    chosen = given if str(given.ty) == "bool" else given != tirx.const(0, str(given.ty))
    return (
        tirx.Select(chosen, score, fill)
        if mask.kind == "keep"
        else tirx.Select(chosen, fill, score)
    )


def _at(tensor: te.Tensor, axes: str, **place: Any) -> tvm.ir.Expr:
    """The element of a tensor whose axes are named; one of size 1 is the same for all."""
    index = [
        0 if isinstance(size, tirx.IntImm) and int(size) == 1 else place[letter]
        for letter, size in zip(axes, tensor.shape, strict=True)
    ]
    return tensor(*index)
