"""Random numbers by counting: normal and uniform ones, Bernoulli, Multinomial and Dropout.

A compiled model is a function of its inputs: every run draws the same numbers. They follow from
the node's ``seed`` or, without one, from its name, so that two nodes without a seed are
independent. (ONNX Runtime draws anew in every run, and leaves open which numbers a seed gives,
as the specification does.) A model that needs fresh noise in every run takes it as an input. In
a loop, every iteration draws other numbers.

Element i is Philox-2x32-10 of the counter s + i and the key of the node (Salmon et al.,
"Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, section 4). The start s is 0 outside of
loops; in the iterations k, l, ... of loops in one another, from the outermost one, it is p(...
p(p(k) ^ l) ...), where p is that function too.
"""

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, constant_array, sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_type_name

_Number = Callable[[tirx.Expr], tirx.Expr]

_MULTIPLIER, _WEYL, _ROUNDS = 0xD256D193, 0x9E3779B9, 10

# The name of the iteration numbers among the values of a body, and of those noted in a node.
ITERATIONS = "tvm_ext::iterations"

# Bits of a uniform number that its type holds below 1.
_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 32}


def philox_rounds(state: Any, key: int) -> None:
    """Turns ``state[0]``, a counter, into two random words of 32 bits, the second one above.

    ``state`` is a buffer uint64[1] in TVM's builder of TensorIR, ``key`` an integer of 32 bits.
    """
    low_half, shift = tirx.const(0xFFFFFFFF, "uint64"), tirx.const(32, "uint64")
    product = local_array(1, "uint64")
    for step in range(_ROUNDS):
        round_key = tirx.const((key + step * _WEYL) & 0xFFFFFFFF, "uint64")
        product[0] = (state[0] & low_half) * tirx.const(_MULTIPLIER, "uint64")
        above = (product[0] >> shift) ^ round_key ^ (state[0] >> shift)
        state[0] = above | ((product[0] & low_half) << shift)


@dataclass(frozen=True)
class Stream:
    """Which numbers a node draws.

    Attributes
    ----------
    key : int
        From the node's seed, or from its name when it has none; 32 bits.
    counted : relax.Expr or None
        The iterations of the loops around it, outermost first: int64[n].
    written : tuple[int, ...]
        Those of the loops in these that are written out.
    """

    key: int
    counted: relax.Expr | None
    written: tuple[int, ...]

    @classmethod
    def of_node(cls, attr: dict, params: Any) -> "Stream":
        """Of a node with these attributes, among the values that ``params`` begins with."""
        node, seed = attr["tvm_custom"], attr.get("seed")
        named = node["name"].encode() if seed is None else struct.pack("<f", seed)
        written = tuple(int(number) for number in node["iterations"].split(",") if number)
        return cls(zlib.crc32(named), params[0].get(ITERATIONS), written)

    def begin(self, start: Any, counted: Sequence[Any]) -> None:
        """Writes into ``start``, uint64[1], the counter of the first element."""
        start[0] = tirx.const(0, "uint64")
        numbers = [number.astype("uint64") for number in counted]
        numbers += [tirx.const(number % (1 << 64), "uint64") for number in self.written]
        for number in numbers:
            start[0] = start[0] ^ number
            philox_rounds(start, self.key)


def sampled(
    bb: relax.BlockBuilder,
    name: str,
    shape: list[Size],
    dtype: str,
    stream: Stream,
    number: _Number,
) -> relax.Expr:
    """A tensor of ``number(word)`` of a new word, uint64, for each element.

    It is a loop that no pass inlines: a tensor expression would be computed again by every reader.
    """
    read = [] if stream.counted is None else [stream.counted]
    depth = sum(int(tensor.ty.shape.values[0]) for tensor in read)

    def body(*buffers: Any) -> None:
        *iterations, written = buffers
        start = local_array(1, "uint64")
        stream.begin(start, [iterations[0][place] for place in range(depth)])
        with T.grid(*(shape or [1])) as index:
            index = list(index) if len(shape) > 1 else [index]
            place: tirx.Expr = tirx.const(0, "int64")
            for size, position in zip(shape, index, strict=False):
                place = place * size + position
            state = local_array(1, "uint64")
            state[0] = start[0] + place.astype("uint64")
            philox_rounds(state, stream.key)
            written[tuple(index[: len(shape)])] = number(state[0])

    return emit_loops(bb, name, read, [(shape, dtype)], body)[0]


def fraction(word: tirx.Expr, dtype: str) -> tirx.Expr:
    """A number in [0, 1), exact in ``dtype``, from the first word of a state."""
    bits = _BITS[dtype]
    wide = "float64" if dtype == "float64" else "float32"
    whole = (word & tirx.const(0xFFFFFFFF, "uint64")) >> tirx.const(32 - bits, "uint64")
    return whole.astype("int64").astype(wide) * tirx.const(2.0**-bits, wide)


def uniform(
    bb: relax.BlockBuilder, shape: list[Size], stream: Stream, low: float, high: float, dtype: str
) -> relax.Expr:
    """Numbers in [low, high) of a floating-point type."""
    _require_float(dtype)

    def number(word: tirx.Expr) -> tirx.Expr:
        return (fraction(word, dtype) * (high - low) + low).astype(dtype)

    return sampled(bb, "random_uniform", shape, dtype, stream, number)


def normal(
    bb: relax.BlockBuilder, shape: list[Size], stream: Stream, mean: float, scale: float, dtype: str
) -> relax.Expr:
    """Normal numbers by the transform of Box and Muller (Ann. Math. Statist. 29, 1958)."""
    _require_float(dtype)
    wide = "float64" if dtype == "float64" else "float32"

    def number(word: tirx.Expr) -> tirx.Expr:
        positive = tirx.const(1.0, wide) - fraction(word, wide)
        angle = fraction(word >> tirx.const(32, "uint64"), wide) * (2 * math.pi)
        value = tirx.sqrt(tirx.log(positive) * -2.0) * tirx.cos(angle)
        return (value * scale + mean).astype(dtype)

    return sampled(bb, "random_normal", shape, dtype, stream, number)


def _require_float(dtype: str) -> None:
    if dtype not in _BITS:
        raise FormError(f"its numbers are of {dtype}; expected a floating-point type")


def _wanted_type(attr: dict, like: relax.Expr | None = None) -> str:
    if "dtype" in attr:
        return str(onnx_type_name(attr["dtype"]))
    return "float32" if like is None else str(like.ty.dtype)


class RandomUniform(OnnxOpConverter):
    """RandomUniform and RandomUniformLike."""

    draws = True

    draw: Callable[..., relax.Expr] = uniform
    numbers: tuple[str, str] = ("low", "high")

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        # By default 0 and 1: of either kind.
        numbers = [
            attr.get(name, default) for name, default in zip(cls.numbers, (0.0, 1.0), strict=True)
        ]
        # Of the input, where the operator has one, else the attribute.
        shape = sizes_of(inputs[0]) if len(inputs) else list(attr["shape"])
        return cls.draw(
            bb, shape, Stream.of_node(attr, params), *numbers, _wanted_type(attr, *inputs)
        )


class RandomNormal(RandomUniform):
    """RandomNormal and RandomNormalLike."""

    draw = normal
    numbers = ("mean", "scale")


class Bernoulli(OnnxOpConverter):
    """1 with the probability that the input says, else 0."""

    draws = True

    @classmethod
    def _impl_v15(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        chance = inputs[0]
        drawn_type = "float64" if str(chance.ty.dtype) == "float64" else "float32"
        numbers = uniform(bb, sizes_of(chance), Stream.of_node(attr, params), 0.0, 1.0, drawn_type)
        if str(chance.ty.dtype) != drawn_type:
            chance = bb.emit(relax.op.astype(chance, drawn_type))
        hit = bb.emit(relax.op.less(numbers, chance))
        return bb.emit(relax.op.astype(hit, _wanted_type(attr, inputs[0])))


class Multinomial(OnnxOpConverter):
    """Classes drawn with the probabilities whose logarithms, up to a constant, are the input.

    The class is the first whose cumulated probability is above a uniform number.
    """

    draws = True

    @classmethod
    def _impl_v7(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        logarithms = inputs[0]
        if str(logarithms.ty.dtype) != "float64":
            logarithms = bb.emit(relax.op.astype(logarithms, "float64"))
        sizes = sizes_of(logarithms)
        if len(sizes) != 2:
            raise FormError(f"its input has rank {len(sizes)}, expected batch and classes")
        sampled = [sizes[0], int(attr.get("sample_size", 1))]
        numbers = uniform(bb, sampled, Stream.of_node(attr, params), 0.0, 1.0, "float64")
        shares = bb.emit(relax.op.nn.softmax(logarithms, axis=-1))
        dtype = str(onnx_type_name(attr["dtype"])) if "dtype" in attr else "int32"
        sums = bb.emit(relax.op.cumsum(shares, axis=-1))
        return bb.emit_te(_first_above, sums, numbers, dtype)


def _first_above(sums: te.Tensor, numbers: te.Tensor, dtype: str) -> te.Tensor:
    """How many of a row's cumulated probabilities are at most the number, times their total."""
    classes = sums.shape[1]
    place = te.reduce_axis((0, classes - 1), name="place")

    def entry(row: tirx.Var, sample: tirx.Var) -> tirx.Expr:
        below = sums[row, place] <= numbers[row, sample] * sums[row, classes - 1]
        return te.sum(below.astype(dtype), axis=place)

    return te.compute(numbers.shape, entry, name="multinomial")


RANDOM_CONVERTERS: dict[str, Any] = {
    "Bernoulli": Bernoulli,
    "Multinomial": Multinomial,
    "RandomNormal": RandomNormal,
    "RandomNormalLike": RandomNormal,
    "RandomUniform": RandomUniform,
    "RandomUniformLike": RandomUniform,
}


# Dropout: in inference its input, in training a random share of it set to zero.
#
# TVM's converter makes a pair of which the second part is dropped again, whether or not there is
# a mask to return, and knows no training mode.


_DEFAULT_RATIO = 0.5


class Dropout(OnnxOpConverter):
    """The input times a mask and 1 / (1 - ratio) in training, else the input and a full mask.

    Which elements go is drawn as in ``random``: every run drops the same ones.
    """

    draws = True

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x, ratio, training = [*inputs, None, None][:3]
        mode = constant_array(training, params)
        if training is None or (mode is not None and not mode.any()):
            mask = relax.op.full(x.ty.shape, relax.const(True, "bool"), "bool")
            return _outputs(bb, attr, x, mask)
        numbers = uniform(bb, sizes_of(x), Stream.of_node(attr, params), 0.0, 1.0, "float32")
        ratio = bb.emit(_ratio(ratio, params))
        kept = bb.emit(relax.op.greater_equal(numbers, ratio))
        one = relax.const(1.0, "float32")
        scale = bb.emit(relax.op.divide(one, relax.op.subtract(one, ratio)))
        if mode is None:
            training = bb.emit(relax.op.reshape(training, ()))
            kept = bb.emit(relax.op.logical_or(kept, relax.op.logical_not(training)))
            scale = bb.emit(relax.op.where(training, scale, one))
        return _outputs(bb, attr, _scaled(bb, x, kept, scale), kept)


def _outputs(bb: relax.BlockBuilder, attr: dict, y: relax.Expr, mask: relax.Expr) -> relax.Expr:
    if attr["tvm_custom"]["num_outputs"] == 1:
        return y
    return relax.Tuple([y, bb.normalize(mask)])


def _ratio(ratio: relax.Expr | None, params: Any) -> relax.Expr:
    """The share of elements that go, a scalar of float32."""
    stored = constant_array(ratio, params)
    if ratio is None or stored is not None:
        value = _DEFAULT_RATIO if stored is None else float(stored.reshape(()))
        if not 0 <= value < 1:
            raise FormError(f"its ratio is {value:g}; expected one from 0 on and below 1")
        return relax.const(value, "float32")
    return relax.op.astype(relax.op.reshape(ratio, ()), "float32")


def _scaled(
    bb: relax.BlockBuilder, x: relax.Expr, kept: relax.Expr, scale: relax.Expr
) -> relax.Expr:
    """``x`` where it is kept, scaled; what goes is multiplied by zero, as ONNX says."""
    dtype = str(x.ty.dtype)
    computed = "float64" if dtype == "float64" else "float32"
    factors = bb.emit(relax.op.multiply(relax.op.astype(kept, "float32"), scale))
    wide = [y if str(y.ty.dtype) == computed else _cast(bb, y, computed) for y in (x, factors)]
    result = bb.emit(relax.op.multiply(*wide))
    return result if dtype == computed else _cast(bb, result, dtype)


def _cast(bb: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr:
    return bb.emit(relax.op.astype(x, dtype))
