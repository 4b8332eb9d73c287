"""Attentions to schedule, and what NumPy says of them, for any machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import tirx

from tvm_ext.tir_schedules.operators.attention import AttentionCompute, Mask

_TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
_TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 2e-5}


@dataclass(frozen=True)
class AttentionCase:
    """An attention: sizes, masks with their tensors, and what the template is to decide."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int = 0
    group: int = 1
    dtype: str = "float16"
    axes: str = "bhsd"
    causal: int | None = None
    zero_rows: bool = False
    masks: Sequence[tuple[Mask, np.ndarray]] = ()
    decided: Mapping[str, int] = field(default_factory=dict)
    sink: np.ndarray | None = None

    @property
    def compute(self) -> AttentionCompute:
        """The description."""
        return AttentionCompute(
            *[self.axes] * 4,
            scale=self.depth**-0.5,
            dtype=self.dtype,
            group=self.group,
            masks=tuple(mask for mask, _ in self.masks),
            causal=self.causal,
            zero_rows=self.zero_rows,
            sink=None if self.sink is None else "bhqk"[-self.sink.ndim :],
        )

    def shapes(self) -> list[list[int]]:
        """Of query, key and value."""

        def shape(heads: int, positions: int, elements: int) -> list[int]:
            sizes = {"b": self.batch, "h": heads, "s": positions, "d": elements}
            return [sizes[letter] for letter in self.axes]

        shared = self.heads // self.group
        return [
            shape(self.heads, self.queries, self.depth),
            shape(shared, self.keys, self.depth),
            shape(shared, self.keys, self.width or self.depth),
        ]

    def others(self) -> list[np.ndarray]:
        """Masks, and behind them the sink."""
        return [tensor for _, tensor in self.masks] + [x for x in (self.sink,) if x is not None]

    def function(self) -> tirx.PrimFunc:
        """The function that is scheduled."""
        tensors = self.others()
        shapes = [*self.shapes(), *(tensor.shape for tensor in tensors)]
        dtypes = [*[self.dtype] * 3, *(str(tensor.dtype) for tensor in tensors)]
        return self.compute.function(shapes, dtypes)

    def arrays(self) -> list[np.ndarray]:
        """Operands, masks and sink."""
        draw = np.random.default_rng(self.keys)
        kind = _TYPES[self.dtype]
        operands = [draw.standard_normal(shape).astype(kind) for shape in self.shapes()]
        return [*operands, *self.others()]

    def expected(self, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """What it computes, in float64."""
        order = [self.axes.index(letter) for letter in "bhsd"]
        q, k, v = (x.astype("float64").transpose(order) for x in (query, key, value))
        k, v = np.repeat(k, self.group, 1), np.repeat(v, self.group, 1)
        scores = q @ k.swapaxes(2, 3) * self.depth**-0.5
        for mask, tensor in self.masks:
            if mask.kind == "add":
                scores = scores + tensor.astype("float64")
                continue
            seen = tensor if mask.kind == "keep" else ~tensor
            scores = np.where(seen, scores, mask.fill)
        if self.causal is not None:
            seen = np.tri(self.queries, self.keys, self.causal, dtype=bool)
            scores = np.where(seen, scores, -np.inf)
        if self.sink is not None:
            column = np.broadcast_to(self.sink.astype("float64"), (*scores.shape[:3], 1))
            scores = np.concatenate([scores, column], 3)
            v = np.concatenate([v, np.zeros_like(v[:, :, :1])], 2)
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
        if self.zero_rows:
            weights = np.nan_to_num(weights)
        return (weights @ v).transpose(["bhsd".index(letter) for letter in self.axes])


def result_of(kernel: Any, case: AttentionCase, *arrays: np.ndarray) -> np.ndarray:
    """What a built kernel computes of operands and masks, in float64."""
    shape = [*case.shapes()[0][:-1], case.width or case.depth]
    result = np.full(shape, 7, _TYPES[case.dtype])
    tensors: list[Any] = [tvm.runtime.tensor(array) for array in (*arrays, result)]
    kernel(*tensors)
    return tensors[-1].numpy().astype("float64")


def assert_computes(kernel: Any, case: AttentionCase, name: str) -> None:
    """The built kernel computes what NumPy does."""
    arrays = case.arrays()
    found = result_of(kernel, case, *arrays)
    tolerance = _TOLERANCES[case.dtype]
    wanted = case.expected(*arrays[:3])
    np.testing.assert_allclose(found, wanted, atol=tolerance, rtol=tolerance, err_msg=name)


LOWEST = float(np.finfo("float32").min)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    """An added mask."""
    return np.random.default_rng(5).standard_normal(shape).astype(dtype)


def seen(*shape: int, blind: bool = False) -> np.ndarray:
    """A mask, of which one query sees no key when it is to be ``blind``."""
    mask = np.random.default_rng(5).random(shape) < 0.5
    mask[..., 0] = True
    if blind:
        mask[0, 0, shape[2] // 2] = False
    return mask


KEEP, DROP = Mask("keep", "bhqk", float("-inf")), Mask("drop", "bhqk", LOWEST)
