"""Affine loop nests made at random: statements and loops side by side, shifts in what is read."""

import random

import numpy as np
import tvm
from tvm import tirx

_ROWS = _COLUMNS = 12
# Loops run within this, so that shifted elements are within the arrays.
_FIRST, _END = 2, 9


def random_nest(seed: int) -> tirx.PrimFunc:
    """A kernel over two matrices and a vector."""
    rng = random.Random(seed)
    lines = _body(rng, [], rng.randint(1, 2))
    text = "\n".join(f"    {line}" for line in lines)
    return tvm.script.from_source(_HEAD + text + "\n")


def arguments() -> dict[str, np.ndarray]:
    """Numbers for the arrays of a nest."""
    generator = np.random.default_rng(0)
    shapes = {"A": (_ROWS, _COLUMNS), "B": (_ROWS, _COLUMNS), "C": (_ROWS,)}
    return {name: generator.random(shape) for name, shape in shapes.items()}


_HEAD = f"""
@T.prim_func(s_tir=True)
def kernel(
    A: T.Buffer(({_ROWS}, {_COLUMNS}), "float64"),
    B: T.Buffer(({_ROWS}, {_COLUMNS}), "float64"),
    C: T.Buffer(({_ROWS},), "float64"),
):
"""


def _body(rng: random.Random, loops: list[str], parts: int) -> list[str]:
    """The lines of so many loops and statements one after the other."""
    lines = []
    for number in range(parts):
        if not loops or (len(loops) < 3 and rng.random() < 0.6):
            lines += _loop(rng, loops, number)
        else:
            lines.append(_statement(rng, loops))
    return lines


def _loop(rng: random.Random, loops: list[str], number: int) -> list[str]:
    var = f"i{len(loops)}_{number}"
    low, end = rng.choice([_FIRST, _FIRST + 1]), rng.choice([_END, _END - 1])
    bounds = f"{low}, {end}"
    if loops and rng.random() < 0.3:
        outer = rng.choice(loops)
        bounds = rng.choice([f"{outer}, {end}", f"{low}, {outer} + 1"])
    inside = _body(rng, [*loops, var], rng.randint(1, 2))
    return [f"for {var} in range({bounds}):", *(f"    {line}" for line in inside)]


def _statement(rng: random.Random, loops: list[str]) -> str:
    target = _element(rng, loops, 0)
    reads = [_element(rng, loops, 2) for _ in range(rng.randint(1, 2))]
    if rng.random() < 0.3:
        reads.append(target)
    terms = [f"T.float64({rng.choice((0.5, 0.25, -0.5))}) * {read}" for read in reads]
    return f"{target} = {' + '.join(terms)} + T.float64({rng.randint(1, 9)})"


def _element(rng: random.Random, loops: list[str], shift: int) -> str:
    def index() -> str:
        return f"{rng.choice(loops)} + {rng.randint(-shift, shift)}"

    array = rng.choice("AABBC")
    return f"C[{index()}]" if array == "C" else f"{array}[{index()}, {index()}]"
