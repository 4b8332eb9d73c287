"""Draws the inputs of a model of the catalogue."""

import ast
import operator
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from catalogue.entry import Entry, Input, Size, Sizes

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def draw_inputs(inputs: Mapping[str, Input], sizes: Sizes, seed: int) -> dict[str, np.ndarray]:
    """One array an input, the same for the same sizes and seed."""
    generator = np.random.default_rng(seed)
    return {name: _draw(one, sizes, generator) for name, one in inputs.items()}


def declared_inputs(path: Path, entry: Entry) -> dict[str, Input]:
    """What an exported file takes: as the entry says, else as the file itself declares it.

    Exporters leave out what a model does not read, and Optimum decides what each file takes.
    """
    graph = onnx.load(path, load_external_data=False).graph
    weights = {one.name for one in graph.initializer}
    declared = [value for value in graph.input if value.name not in weights]
    return {value.name: entry.inputs.get(value.name) or _declared(value) for value in declared}


def _declared(value: onnx.ValueInfoProto) -> Input:
    tensor = value.type.tensor_type
    shape = [size.dim_param or size.dim_value for size in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if "mask" in value.name:
        return Input(dtype.name, shape, "mask")
    return Input(dtype.name, shape, "normal" if dtype.kind == "f" else "range", 0, 2)


def size_of(size: Size, sizes: Sizes) -> int:
    """A dimension's size: a number, a name, or what an exporter wrote (``past + 1``)."""
    if isinstance(size, int):
        return size
    if size in sizes:
        return sizes[size]
    return _evaluated(ast.parse(size, mode="eval").body, sizes)


def _evaluated(tree: ast.AST, sizes: Sizes) -> int:
    if isinstance(tree, ast.Constant):
        return int(tree.value)  # type: ignore[arg-type]
    if isinstance(tree, ast.Name):
        return sizes[tree.id]
    if isinstance(tree, ast.BinOp):
        known = _OPERATORS[type(tree.op)]
        return known(_evaluated(tree.left, sizes), _evaluated(tree.right, sizes))
    raise ValueError(f"{ast.unparse(tree)} is no size; expected names, numbers, + - * /")


def _draw(one: Input, sizes: Sizes, generator: np.random.Generator) -> np.ndarray:
    shape = tuple(size_of(size, sizes) for size in one.shape)
    if one.dtype == "str":
        return generator.choice(np.array(one.words, object), shape)
    values: Any
    if one.kind == "normal":
        values = generator.standard_normal(shape)
    elif one.kind == "mask":
        lengths = generator.integers((shape[-1] + 1) // 2, shape[-1] + 1, (*shape[:-1], 1))
        values = np.arange(shape[-1]) < lengths
    elif one.kind == "value":
        values = np.full(shape, one.low)
    elif np.dtype(one.dtype).kind == "f":
        values = generator.uniform(one.low, one.high, shape)
    else:
        values = generator.integers(int(one.low), int(one.high), shape)
    return np.asarray(values, one.dtype)


def seed_everything(seed: int = 0) -> None:
    """Weights are the same in every export."""
    random.seed(seed)
    np.random.seed(seed)
