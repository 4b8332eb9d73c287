"""Attentions to schedule, what NumPy says of them, and how both are compared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from cuda_emulation import set_seed
from cuda_kernels import scheduled
from emulated_kernels import emulated
from machines import GPU
from tvm import tirx

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.cuda.attention.attention import Attention
from tvm_ext.tir_schedules.operators.attention import AttentionCompute, Mask
from tvm_ext.tir_schedules.template import FixedDecisions, Template

INSTRUCTIONS_OF_WARPS = Attention()

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

    def function(self) -> tirx.PrimFunc:
        """The function that is scheduled."""
        tensors = [tensor for _, tensor in self.masks]
        shapes = [*self.shapes(), *(tensor.shape for tensor in tensors)]
        dtypes = [*[self.dtype] * 3, *(str(tensor.dtype) for tensor in tensors)]
        return self.compute.function(shapes, dtypes)

    def scheduled(
        self, machine: CudaDescription = GPU, template: Template = INSTRUCTIONS_OF_WARPS
    ) -> tirx.PrimFunc:
        """The function under a template."""
        return scheduled(template, self.function(), machine, FixedDecisions(self.decided))

    def arrays(self) -> list[np.ndarray]:
        """Operands and masks."""
        draw = np.random.default_rng(self.keys)
        kind = _TYPES[self.dtype]
        operands = [draw.standard_normal(shape).astype(kind) for shape in self.shapes()]
        return [*operands, *(tensor for _, tensor in self.masks)]

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


def check(
    cases: Mapping[str, AttentionCase],
    seeds: Sequence[int] = (0,),
    machine: CudaDescription = GPU,
    template: Template = INSTRUCTIONS_OF_WARPS,
) -> None:
    """The CUDA code of every case, run in the emulator, computes what NumPy does."""
    made = {name: case.scheduled(machine, template) for name, case in cases.items()}
    compare(cases, emulated(made, machine), seeds)


def compare(
    cases: Mapping[str, AttentionCase], kernels: Mapping[str, Any], seeds: Sequence[int]
) -> None:
    """The built kernels of some cases compute what NumPy does."""
    for name, case in cases.items():
        arrays = case.arrays()
        wanted = case.expected(*arrays[:3])
        for seed in seeds:
            set_seed(seed)
            found = result_of(kernels[name], case, *arrays)
            tolerance = _TOLERANCES[case.dtype]
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


SMALL_TILE = {"warps": 2, "keys": 16}


WARP_ATTENTIONS = {
    "odd lengths": AttentionCase(2, 1, 37, 41, 16, decided=SMALL_TILE),
    "two row tiles": AttentionCase(
        1, 1, 70, 33, 16, decided={"warps": 2, "row_tiles": 2, "keys": 32}
    ),
    "three stages": AttentionCase(1, 1, 20, 90, 16, decided={"warps": 1, "keys": 16, "stages": 3}),
    "causal": AttentionCase(1, 1, 50, 50, 16, causal=0, decided=SMALL_TILE),
    "causal behind": AttentionCase(1, 1, 20, 30, 16, causal=10, decided=SMALL_TILE),
    "causal without keys": AttentionCase(1, 1, 20, 20, 16, causal=-5, decided=SMALL_TILE),
    "filled up": AttentionCase(1, 2, 20, 20, 20, 12, axes="bshd", decided=SMALL_TILE),
    "odd sizes": AttentionCase(1, 2, 17, 20, 15, 9, decided={"warps": 1, "keys": 16}),
    "added mask": AttentionCase(
        2,
        2,
        20,
        30,
        16,
        dtype="bfloat16",
        masks=[(Mask("add", "bhqk"), normal(2, 1, 1, 30))],
        decided=SMALL_TILE,
    ),
    "no key seen": AttentionCase(1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))]),
    "zeros": AttentionCase(
        1, 2, 20, 20, 16, masks=[(KEEP, seen(1, 2, 20, 20, blind=True))], zero_rows=True
    ),
    "lowest number": AttentionCase(
        1, 1, 20, 20, 16, masks=[(DROP, ~seen(1, 1, 20, 20, blind=True))]
    ),
    "grouped": AttentionCase(1, 4, 18, 20, 16, group=2, decided={"warps": 1, "keys": 16}),
    "packed": AttentionCase(1, 4, 5, 40, 16, group=2, causal=35, decided={"keys": 16, "splits": 1}),
    "split keys": AttentionCase(2, 4, 1, 100, 16, 12, group=4, decided={"keys": 16, "splits": 3}),
    "split mask": AttentionCase(
        1,
        2,
        2,
        100,
        16,
        masks=[(KEEP, seen(1, 1, 2, 100, blind=True))],
        decided={"keys": 16, "splits": 3},
    ),
}


FLOAT32_ATTENTIONS = {
    "float32": AttentionCase(1, 2, 21, 19, 16, dtype="float32", causal=0, decided={"row_tiles": 2}),
    "float32 filled up": AttentionCase(1, 2, 9, 11, 10, 9, dtype="float32", axes="bshd"),
    "float32 split": AttentionCase(
        1, 4, 3, 70, 8, 16, 2, dtype="float32", causal=67, decided={"keys": 8, "splits": 3}
    ),
}
