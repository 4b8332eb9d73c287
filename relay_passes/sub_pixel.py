"""Transposed convolution without inserted zeros: which weight meets which input, along each axis.

Along one axis, input ``i`` adds ``x[i] * w[j]`` to output ``i * stride + j * dilation - before``.
So outputs of one phase, ``o = stride * m + f``, read neighbouring inputs, and only the weights
with ``stride`` dividing ``f + before - j * dilation``: a plain convolution for each phase, whose
results lie ``stride`` apart (Shi et al. 2016, arXiv 1609.05158, section 3.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np
from tvm import te, tirx, topi


@dataclass(frozen=True)
class UpsampledAxis:
    """One spatial axis of a transposed convolution.

    Attributes
    ----------
    length, outputs : int
        Extents of input and output along the axis.
    kernel, stride, dilation : int
        As the operator has them.
    before : int
        Outputs cut off at the start: the operator's padding.
    """

    length: int
    outputs: int
    kernel: int
    stride: int
    dilation: int
    before: int

    @cached_property
    def _offsets(self) -> dict[tuple[int, int], int]:
        """By phase and weight that meet: the input's position less the output's ``m``."""
        offsets = {}
        for j in range(self.kernel):
            phase = (j * self.dilation - self.before) % self.stride
            offsets[phase, j] = (phase + self.before - j * self.dilation) // self.stride
        return offsets

    @property
    def first(self) -> int:
        """Offset of the first input that an output reads: input ``m + first + tap``."""
        return min(self._offsets.values())

    @property
    def taps(self) -> int:
        """Neighbouring inputs that the phases together read for one ``m``."""
        return max(self._offsets.values()) - self.first + 1

    @property
    def positions(self) -> int:
        """Outputs of one phase; the last may be one too many."""
        return -(-self.outputs // self.stride)

    @property
    def useful_taps(self) -> int:
        """Pairs of phase and tap with a weight, of ``stride * taps``."""
        return len(self._offsets)

    @property
    def is_dense(self) -> bool:
        """Whether every phase has a weight at every tap."""
        return self.useful_taps == self.stride * self.taps

    @property
    def padding(self) -> tuple[int, int]:
        """Zeros that a convolution over the taps needs before and after the input."""
        last = self.positions + self.first + self.taps - 1
        return max(0, -self.first), max(0, last - self.length)

    @property
    def skipped(self) -> int:
        """Inputs, after padding, that no output reads at the start."""
        return max(0, self.first)

    def weight_table(self) -> np.ndarray:
        """The weight for each phase and tap, -1 where there is none; shape (stride, taps)."""
        table = np.full((self.stride, self.taps), -1)
        for (phase, j), offset in self._offsets.items():
            table[phase, offset - self.first] = j
        return table

    def has_weight(self, phase: tirx.Expr, tap: tirx.Expr) -> list[tirx.Expr]:
        """What must hold for ``phase`` to have a weight at ``tap``; nothing if it always has."""
        if self.is_dense:
            return []
        reached = phase + self.before - self.stride * (tap + self.first)
        conditions = [reached >= 0, reached <= (self.kernel - 1) * self.dilation]
        if self.dilation > 1:
            conditions.append(tirx.indexmod(reached, self.dilation) == 0)
        return conditions

    def aligned(self) -> tuple["UpsampledAxis", int]:
        """The axis with the fewest taps that computes these outputs, and how many more before."""
        cut = self.before % self.stride
        return replace(self, before=self.before - cut, outputs=self.outputs + cut), cut


def spread_weights(weight: np.ndarray, axes: Sequence[UpsampledAxis]) -> np.ndarray:
    """``weight`` of shape (..., kernel of each axis) with phases and taps for each axis of kernel.

    Returns shape (..., stride, taps, stride, taps, ...), zero where a phase has no weight.
    """
    leading = weight.ndim - len(axes)
    for number, axis in enumerate(axes):
        table = axis.weight_table()
        spread = np.take(weight, np.maximum(table, 0), axis=leading + 2 * number)
        mask = (table >= 0).reshape(table.shape + (1,) * (len(axes) - number - 1))
        weight = np.where(mask, spread, np.zeros((), weight.dtype))
    return weight


@dataclass(frozen=True)
class InterleavedKernel:
    """All phases in one kernel that writes every output to its place, channels last.

    Takes the input as (batch, length..., channels) and gives, as one stretch of memory,
    (batch, positions, stride, positions, stride, ..., channels): outputs from left to right, one
    phase after the other. Taps without a weight are skipped by a branch outside of the vectors.
    ``joined`` kernels have the phases of the last axis and the channels on one axis, and compute
    taps without a weight there; ``groups`` is 1 for them. Without ``branches`` all are computed,
    so that the kernel is a product of matrices.
    """

    axes: tuple[UpsampledAxis, ...]
    groups: int
    joined: bool
    out_dtype: str
    branches: bool = True

    @property
    def output_spatial(self) -> list[int]:
        """Extents of the output's spatial axes, with what is one too many."""
        return [axis.positions * axis.stride for axis in self.axes]

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """The operator's weight, (inputs, outputs of a group, kernel...), as the kernel reads it.

        Shape (phases..., taps..., inputs of a group, groups, outputs of a group), or, joined,
        (phases but the last..., taps..., inputs, last phase times outputs).
        """
        rank = len(self.axes)
        inputs = weight.shape[0] // self.groups
        grouped = weight.reshape(self.groups, inputs, *weight.shape[1:])
        spread = spread_weights(grouped, self.axes)
        phases, taps = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
        if not self.joined:
            return np.ascontiguousarray(spread.transpose(*phases, *taps, 1, 0, 2))
        *early, last = phases
        ordered = spread[0].transpose(*(n - 1 for n in (*early, *taps, 1, last, 2)))
        return ordered.reshape(*ordered.shape[:-2], -1)

    def compute(self, x: te.Tensor, weight: te.Tensor) -> te.Tensor:
        """The tensor expression; ``weight`` as ``pack`` makes it."""
        rank = len(self.axes)
        before, after = zip(*(axis.padding for axis in self.axes), strict=True)
        padded = x
        if any((*before, *after)):
            padded = topi.nn.pad(x, [0, *before, 0], [0, *after, 0], name="pad")
        inputs = int(weight.shape[2 * rank - self.joined])
        taps = [te.reduce_axis((0, axis.taps), name=f"t{n}") for n, axis in enumerate(self.axes)]
        i = te.reduce_axis((0, inputs), name="i")
        channels = [weight.shape[-1]] if self.joined else weight.shape[-2:]

        def element(*index: tirx.Var) -> tirx.Expr:
            batch, positions, phases, rest = self._split(index)
            group = rest[0] if not self.joined else 0
            places = [
                m + tap + axis.skipped
                for m, tap, axis in zip(positions, taps, self.axes, strict=True)
            ]
            value = padded(batch, *places, group * inputs + i).astype(self.out_dtype)
            product = value * weight(*phases, *taps, i, *rest).astype(self.out_dtype)
            conditions = [
                condition
                for phase, tap, axis in zip(phases, taps, self.axes, strict=False)
                for condition in axis.has_weight(phase, tap)
            ]
            if conditions and self.branches:
                zero = tirx.const(0, self.out_dtype)
                product = tirx.if_then_else(tirx.all(*conditions), product, zero)
            return te.sum(product, axis=[*taps, i])

        spatial = [extent for axis in self.axes for extent in (axis.positions, axis.stride)]
        shape = [x.shape[0], *(spatial[:-1] if self.joined else spatial), *channels]
        return te.compute(shape, element, name="conv_transpose")

    def _split(self, index: tuple[tirx.Var, ...]) -> tuple[tirx.Var, list, list, list]:
        """Batch, position and phase along each axis (joined: but the last phase), channels."""
        rank = len(self.axes)
        spatial = 2 * rank - self.joined
        return (
            index[0],
            list(index[1 : 1 + spatial : 2]),
            list(index[2 : 1 + spatial : 2]),
            list(index[1 + spatial :]),
        )


@dataclass(frozen=True)
class StackedConvolution:
    """All phases as output channels of one plain convolution, channels first.

    Attributes
    ----------
    axes : tuple of UpsampledAxis
        Aligned: the convolution computes ``cut`` outputs too many at the start of each.
    cut : tuple of int
        Outputs to drop at the start of each axis.
    groups : int
        Groups of the operator.
    """

    axes: tuple[UpsampledAxis, ...]
    cut: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, axes: Sequence[UpsampledAxis], groups: int) -> "StackedConvolution":
        """The one with the smallest window for ``axes``."""
        aligned, cut = zip(*(axis.aligned() for axis in axes), strict=True)
        return cls(aligned, cut, groups)

    @property
    def padding(self) -> list[int]:
        """Padding of the convolution: before on all axes, then after."""
        before, after = zip(*(axis.padding for axis in self.axes), strict=True)
        return [*before, *after]

    @property
    def begin(self) -> list[int]:
        """The first output of each axis that is wanted, after the phases are interleaved."""
        return [
            axis.skipped * axis.stride + cut for axis, cut in zip(self.axes, self.cut, strict=True)
        ]

    def pack(self, weight: np.ndarray) -> np.ndarray:
        """The operator's weight, (inputs, outputs of a group, kernel...), for the convolution.

        Shape (groups * phases * outputs of a group, inputs of a group, taps...).
        """
        rank = len(self.axes)
        inputs = weight.shape[0] // self.groups
        grouped = weight.reshape(self.groups, inputs, *weight.shape[1:])
        spread = spread_weights(grouped, self.axes)
        phases, taps = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
        ordered = spread.transpose(0, *phases, 2, 1, *taps)
        return ordered.reshape(self.weight_shape(weight.shape))

    def weight_shape(self, shape: Sequence[int]) -> list[int]:
        """The shape of what ``pack`` makes of a weight of ``shape``."""
        phases = prod(axis.stride for axis in self.axes)
        outputs, inputs = self.groups * phases * shape[1], shape[0] // self.groups
        return [outputs, inputs, *(axis.taps for axis in self.axes)]

    def split_shape(self, shape: Sequence[int]) -> list[int]:
        """``shape`` of the convolution's result with groups, phases and channels apart."""
        strides = [axis.stride for axis in self.axes]
        channels = shape[1] // self.groups // prod(strides)
        return [shape[0], self.groups, *strides, channels, *shape[2:]]

    @property
    def interleaving(self) -> list[int]:
        """The order of axes that puts each phase behind its position."""
        rank = len(self.axes)
        places = [axis for n in range(rank) for axis in (3 + rank + n, 2 + n)]
        return [0, 1, 2 + rank, *places]
