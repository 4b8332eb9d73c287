"""FuseDequantizeMatmul: matmuls that widen stored integers of a few bits as they read them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, GraphView, Replacement
from tvm_ext.relay_passes.expressions import constant_value, static_shape
from tvm_ext.relay_passes.graph_pass import OUT_ELEMENTWISE_FUSABLE, graph_pass
from tvm_ext.relay_passes.layout_roles import permutation_of
from tvm_ext.relay_passes.zero_point_compensation import are_whole

# The widths that a word of 32 bits is cut into.
_WIDTHS = (2, 4, 8)
_WORD_BITS = 32

# Of a float32.
_MANTISSA_BITS, _EXPONENT_BIAS = 23, 127

# Of float16: larger weights are endless in a model of it.
_LARGEST = 65504

_WIDE = "float32"
_FLOATS = (_WIDE, "float16", "bfloat16")

# Integers that share a scale, at least: of fewer, the scales would take as long to read.
_LEAST_BLOCK = 16

# Rows of the data, at most, for which bytes are widened anew: for more, reading them in place of
# float32 saves less than that takes.
_MOST_ROWS_OF_BYTES = 16


@graph_pass
class FuseDequantizeMatmul:
    """Keeps weights of 2, 4 or 8 bits packed, and widens them in the registers of a matmul.

    Before: ``y = matmul(x, astype(W, float32) * repeat(s, block))``    W: integers, s: by block
    After:  ``y = dequantize_matmul(x, P)``        P: uint32, each block's scale before its integers

    This is MatMulNBits, and DequantizeLinear of the weights alone, by block or by column: the
    weights of a language model take an eighth of the memory of float32, and a matmul of one row
    takes the time of reading them. The numbers are those of float32. See oneDNN's "weights
    decompression", and the blocks Q4_0 and Q4_1 of llama.cpp.

    Leaves alone: weights that are computed in the run; scales along no axis, or for blocks of
    fewer than 16; integers of a block that span more than 8 bits; bytes that many rows use;
    batches of matrices as weights; other targets than CPUs.

    Run after: FakeQuantizationToInteger. Run before: FoldConstantCalls, which computes the weights.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The rewritten module; ``mod`` itself when nothing matches."""
        return mod if current_cpu() is None else _DequantizeRewriter().run(mod)


@dataclass(frozen=True)
class NarrowWeights:
    """``integers * repeat(scale, block)``: ``[depth, columns]`` and ``[blocks, columns]``."""

    integers: np.ndarray
    scale: np.ndarray
    block: int


@dataclass(frozen=True)
class _Packing:
    """How the words of a column follow each other.

    Attributes
    ----------
    bits : int
        Of an integer, without a sign.
    block : int
        Integers of a block.
    zero : int or None
        What all integers are less their number; None where each block has its own.
    group : int
        Blocks whose own such numbers share a word; 1 where there are none.
    groups : int
        In a column.
    """

    bits: int
    block: int
    zero: int | None
    group: int
    groups: int

    @property
    def in_word(self) -> int:
        """Integers."""
        return _WORD_BITS // self.bits

    @property
    def block_words(self) -> int:
        """Of a block, its scale first."""
        return 1 + self.block // self.in_word

    @property
    def group_words(self) -> int:
        """Of a group, the word of its zeros first where there is one."""
        return (self.zero is None) + self.group * self.block_words


class _DequantizeRewriter(BindingRewriter):
    pass_name = "FuseDequantizeMatmul"
    roots = frozenset({"relax.matmul"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul")
        if call is None:
            return None
        dtypes = {str(operand.ty.dtype) for operand in (*call.args, var)}
        if len(dtypes) > 1 or dtypes.isdisjoint(_FLOATS):
            return None
        weights = narrow_weights(self.view, call.args[1])
        if weights is None:
            return None
        packing = _packing(weights)
        if packing is None:
            short = weights.block < _LEAST_BLOCK
            self.refuse(
                f"blocks of {weights.block}, of fewer than {_LEAST_BLOCK} integers"
                if short
                else "integers of a block span more than 8 bits",
                var,
            )
            return None
        shape = static_shape(call.args[0])
        rows = 1 if shape is None else math.prod(shape[:-1])
        if packing.bits == max(_WIDTHS) and rows > _MOST_ROWS_OF_BYTES:
            self.refuse("bytes that many rows use", var)
            return None
        words = relax.const(_packed(weights, packing), "uint32")

        def dequantize_matmul(x: te.Tensor, stored: te.Tensor) -> te.Tensor:
            return _product(x, stored, packing)

        attrs = {"op_pattern": OUT_ELEMENTWISE_FUSABLE}
        data = call.args[0]
        (dtype,) = dtypes
        if dtype != _WIDE:
            data = self.bind(relax.op.astype(data, _WIDE), var)
        made = self.builder.call_te(dequantize_matmul, data, words, primfunc_attrs=attrs)
        if dtype != _WIDE:
            made = relax.op.astype(self.bind(made, var), dtype)
        return Replacement(made, (), f"integers of {packing.bits} bits are widened in registers")


def narrow_weights(view: GraphView, expr: relax.Expr) -> NarrowWeights | None:
    """Stored integers of a matrix, and their scales."""
    # Of a model of float16, the weights are rounded to it and widened again.
    floats = _widened(view, expr)
    transposed = view.call(floats, "relax.permute_dims")
    numbers = floats if transposed is None else transposed.args[0]
    product = view.call(_widened(view, numbers), "relax.multiply")
    if product is None or expr.ty.ndim != 2:
        return None
    cast = view.call(product.args[0], "relax.astype")
    integers = constant_value(view, product.args[0] if cast is None else cast.args[0])
    found = _scales(view, product.args[1])
    if integers is None or found is None or integers.ndim != 2:
        return None
    scale, axis, block = found
    scale = scale.reshape((1,) * (2 - scale.ndim) + scale.shape)
    if transposed is not None and list(permutation_of(transposed)) == [1, 0]:
        integers, scale, axis = integers.T, scale.T, 1 - axis
    depth, columns = integers.shape
    if scale.shape[1] != columns or not are_whole(integers, -255, 255):
        return None
    if np.abs(integers).max(initial=0) * np.abs(scale).max(initial=0) > _LARGEST:
        return None
    if scale.shape[0] == 1:
        return NarrowWeights(integers, scale, depth)
    if axis != 0 or scale.shape[0] != -(-depth // block):
        return None
    # The last block may be shorter: then all are as long as divides them.
    whole = math.gcd(depth, block)
    scale = np.repeat(scale, block // whole, 0)[: depth // whole]
    return NarrowWeights(integers, scale, whole)


def _widened(view: GraphView, expr: relax.Expr) -> relax.Expr:
    """What is cast between types of floats, where ``expr`` is such a cast; else ``expr``."""
    call = view.call(expr, "relax.astype")
    types = [] if call is None else [str(one.ty.dtype) for one in (call, call.args[0])]
    return call.args[0] if call is not None and set(types) <= set(_FLOATS) else expr


def _scales(view: GraphView, expr: relax.Expr) -> tuple[np.ndarray, int, int] | None:
    """Stored scales, the axis along which each is for a block, and the block's size."""
    cut = view.call(expr, "relax.strided_slice")
    if cut is not None and any(int(at) for at in cut.args[2].fields):
        return None
    repeated = view.call(expr if cut is None else cut.args[0], "relax.repeat")
    scale = constant_value(view, expr if repeated is None else repeated.args[0])
    if scale is None or scale.dtype.kind != "f":
        return None
    if repeated is None:
        return scale.astype(np.float32), 0, 1
    attrs: Any = repeated.attrs
    return scale.astype(np.float32), int(attrs.axis), int(attrs.repeats)


def _packing(weights: NarrowWeights) -> _Packing | None:
    """The narrowest that holds the integers; None where there is none."""
    depth, columns = weights.integers.shape
    blocks = depth // weights.block
    if weights.block < _LEAST_BLOCK:
        return None
    # In a wide type: the difference of two bytes is none.
    cut = weights.integers.astype(np.int32).reshape(blocks, weights.block, columns)
    low, high = np.minimum(cut.min(axis=1), 0), cut.max(axis=1)
    fitting = [b for b in _WIDTHS if not weights.block % (_WORD_BITS // b)]
    for bits in fitting:
        steps = 1 << bits
        usual = -(steps >> 1)
        if low.min() >= usual and high.max() < usual + steps:
            return _Packing(bits, weights.block, usual, 1, blocks)
        if low.min() + steps > high.max():
            return _Packing(bits, weights.block, int(low.min()), 1, blocks)
        if (high - low).max() < steps and low.min() > -steps:
            # Of the blocks' own numbers, as many as a word holds.
            group = math.gcd(blocks, _WORD_BITS // bits)
            return _Packing(bits, weights.block, None, group, blocks // group)
    return None


def _packed(weights: NarrowWeights, packing: _Packing) -> np.ndarray:
    """Words of uint32, ``[words of a column, columns]``."""
    columns = weights.integers.shape[1]
    blocks = packing.groups * packing.group
    integers = weights.integers.astype(np.int32).reshape(blocks, packing.block, columns)
    low = np.minimum(integers.min(axis=1), 0)
    if packing.zero is not None:
        low = np.full_like(low, packing.zero)
    numbers = (integers - low[:, None]).reshape(blocks, -1, packing.in_word, columns)
    words = _joined(numbers, packing.bits)
    scale = np.ascontiguousarray(weights.scale).view(np.uint32)[:, None]
    whole = np.concatenate([scale, words], axis=1)
    whole = whole.reshape(packing.groups, packing.group * packing.block_words, columns)
    if packing.zero is None:
        zeros = -low.reshape(packing.groups, packing.group, columns)
        whole = np.concatenate([_joined(zeros, packing.bits)[:, None], whole], axis=1)
    return np.ascontiguousarray(whole.reshape(-1, columns))


def _joined(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Words of the numbers along the last axis but one, the first in the lowest bits."""
    words = np.zeros((*numbers.shape[:-2], numbers.shape[-1]), np.uint32)
    for place in range(numbers.shape[-2]):
        words |= numbers[..., place, :].astype(np.uint32) << np.uint32(place * bits)
    return words


def _product(x: te.Tensor, words: te.Tensor, packing: _Packing) -> te.Tensor:
    """The matmul, whose sum is over groups, blocks, words and the integers of a word."""
    own_zeros = packing.zero is None
    extents = (packing.groups, packing.group, packing.block_words - 1, packing.in_word)
    names = ("group", "block", "word", "place")
    axes = [te.reduce_axis((0, n), k) for n, k in zip(extents, names, strict=True)]
    group, block, word, place = axes

    def each(*indices: tirx.Var) -> tvm.ir.Expr:
        *rows, column = indices
        start = group * packing.group_words
        first = start + own_zeros + block * packing.block_words
        scale = tirx.reinterpret("float32", words(first, column))
        stored = words(first + 1 + word, column)
        number, power = _raised(stored, place, packing.bits)
        if own_zeros:
            # Beside the power, which is the same for many integers of the block.
            zero, added = _raised(words(start, column), block, packing.bits)
            number = number - (power + (zero - added))
        else:
            number = number - (power - float(packing.zero or 0))
        depth = ((group * packing.group + block) * extents[2] + word) * extents[3] + place
        return te.sum(x(*rows, depth) * (number * scale), axis=axes)

    shape: Sequence[Any] = (*x.shape[:-1], words.shape[1])
    return te.compute(shape, each, "dequantize_matmul")


def _raised(word: Any, position: Any, bits: int) -> tuple[tvm.ir.Expr, tvm.ir.Expr]:
    """The integer at a position of a word as a float32, plus a power of two; and that power.

    The integer takes the last bits of a float between ``2 ** n`` and ``2 ** (n + 1)``. To subtract
    ``2 ** n``, and small integers with it, is exact. Words are shifted only for integers that
    would be among the bits of the exponent. For a position that is known this takes two
    instructions, where shifting, masking and converting are three; the constants are without a
    sign, since TVM would take int32 for places in memory, and widen them to int64.
    """
    each_shift = _MANTISSA_BITS // bits
    shift, place = position // each_shift, position % each_shift
    first = tirx.Cast("uint32", place * bits)
    mask = tirx.shift_left(tirx.const((1 << bits) - 1, "uint32"), first)
    exponent = tirx.Cast("uint32", (_EXPONENT_BIAS + _MANTISSA_BITS) - place * bits)
    power = tirx.shift_left(exponent, tirx.const(_MANTISSA_BITS, "uint32"))
    moved = tirx.shift_right(word, tirx.Cast("uint32", shift * (each_shift * bits)))
    number = tirx.reinterpret("float32", tirx.bitwise_or(moved & mask, power))
    return number, tirx.reinterpret("float32", power)
