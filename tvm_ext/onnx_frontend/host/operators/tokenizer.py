"""Tokenizer of com.microsoft, which skl2onnx writes for text vectorizers."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.host.operators.operator import Compute, HostOperator

_START, _END = "\x02", "\x03"


def tokenizer(attributes: dict[str, Any], opset: int) -> Compute:
    """Tokens of each text along a new last axis, padded by ``pad_value``.

    Texts are cut at separators, into what ``tokenexp`` matches, or, where the only separator is
    empty, into characters. Tokens shorter than ``mincharnum`` are left out.
    """
    split = _splitter(attributes)
    shortest, mark = int(attributes.get("mincharnum", 1)), bool(attributes.get("mark", 0))
    pad = attributes.get("pad_value", "")

    def tokens(text: str) -> list[str]:
        kept = [token for token in split(text) if len(token) >= shortest]
        return [_START, *kept, _END] if mark and kept else kept

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = given[0]
        if x.ndim not in (1, 2):
            raise FormError(f"its input has shape {list(x.shape)}; expected [C] or [B, C]")
        rows = [tokens(text) for text in x.ravel().tolist()]
        width = max(map(len, rows), default=0)
        result = np.full((len(rows), width), pad, object)
        for row, found in zip(result, rows, strict=True):
            row[: len(found)] = found
        return (result.reshape(*x.shape, width),)

    return compute


def _splitter(attributes: dict[str, Any]) -> Callable[[str], list[str]]:
    expression = attributes.get("tokenexp")
    if expression:
        find = re.compile(expression).finditer
        return lambda text: [found.group(0) for found in find(text) if found.group(0)]
    separators = attributes.get("separators", [])
    if list(separators) in ([], [""]):
        return list
    found = [re.compile(separator) for separator in separators]

    def split(text: str) -> list[str]:
        parts = [text]
        for separator in found:
            parts = [piece for part in parts for piece in _cut(part, separator)]
        return parts

    return split


def _cut(text: str, separator: re.Pattern[str]) -> list[str]:
    pieces, start = [], 0
    for found in separator.finditer(text):
        if found.end() > found.start():
            pieces.append(text[start : found.start()])
            start = found.end()
    return [*pieces, text[start:]]


TOKENIZERS: dict[str, HostOperator] = {"com.microsoft::Tokenizer": tokenizer}
