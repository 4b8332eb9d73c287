"""Operators on tensors of strings, as ONNX Runtime computes them; tokenizers, feature hashing."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.host.operators.operator import Compute, HostOperator, without_attributes

_NUMBER = re.compile(
    r"\s*([+-]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|inf(?:inity)?|nan))",
    re.IGNORECASE,
)
_INTEGER = re.compile(r"\s*([+-]?\d+)")
_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


def cast(attributes: dict[str, Any], opset: int) -> Compute:
    """Numbers as text with 8 or 17 digits, as C's ``%g`` writes them, and text as numbers.

    Text may go on after a number, and integers wrap around: so do C's functions.
    """
    to = attributes["to"]
    if to == onnx.TensorProto.STRING:
        return lambda given: (_texts(given[0]),)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    parse = _parsed_integer if dtype.kind in "iub" else _parsed_float

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = np.asarray(given[0])
        if x.dtype.kind not in "OU":
            return (x.astype(dtype),)
        numbers = [parse(one) for one in x.ravel().tolist()]
        if dtype.kind in "iu":
            wide = [(n + (1 << 63)) % (1 << 64) - (1 << 63) for n in numbers]
            array = np.array(wide, np.int64).astype(dtype)
        else:
            array = np.array(numbers, np.float64 if dtype.kind != "b" else None).astype(dtype)
        return (array.reshape(x.shape),)

    return compute


def gather(attributes: dict[str, Any], opset: int) -> Compute:
    """Elements or slices by their position along an axis, a column of strings for instance."""
    axis = int(attributes.get("axis", 0))
    return lambda given: (np.asarray(np.take(given[0], given[1], axis=axis), given[0].dtype),)


def _texts(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "OU":
        return x
    if x.dtype.kind in "iub":
        found = [str(int(one)) for one in x.ravel().tolist()]
    else:
        digits = 17 if x.dtype == np.float64 else 8
        found = [_float_text(float(one), digits) for one in x.ravel()]
    result = np.empty(len(found), object)
    result[:] = found
    return result.reshape(x.shape)


def _float_text(value: float, digits: int) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "INF" if value > 0 else "-INF"
    return f"{value:.{digits}g}"


def _parsed_float(text: str) -> float:
    number = _leading(_NUMBER, text, "number")
    return float(int(number, 16)) if "x" in number.lower() else float(number)


def _parsed_integer(text: str) -> int:
    return int(_leading(_INTEGER, text, "integer"))


def _leading(kind: re.Pattern[str], text: str, name: str) -> str:
    found = kind.match(text)
    if found is None:
        raise FormError(f"{text!r} is no {name}")
    return found[1]


def string_normalizer(attributes: dict[str, Any], opset: int) -> Compute:
    """Elements without stop words, in lower or upper case; ``[""]`` where none is left."""
    change = _CASES[attributes.get("case_change_action", "NONE")]
    exact = bool(attributes.get("is_case_sensitive", 0))
    compared: Callable[[str], str] = str if exact else str.lower
    stopwords = {compared(word) for word in attributes.get("stopwords", ())}

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = given[0]
        if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
            raise FormError(f"its input has shape {list(x.shape)}; expected [C] or [1, C]")
        kept = [change(one) for one in x.ravel().tolist() if compared(one) not in stopwords]
        result = np.array(kept or [""], object)
        return (result if x.ndim == 1 else result.reshape(1, -1),)

    return compute


def _concatenated(given: Sequence[Any]) -> tuple[np.ndarray]:
    """The texts of one array with those of the other behind them, broadcast."""
    return (np.asarray(given[0].astype(object) + given[1].astype(object), object),)


def string_split(attributes: dict[str, Any], opset: int) -> Compute:
    """Parts of each text along a new last axis, padded by empty ones, and how many there are."""
    separator = attributes.get("delimiter") or None
    most = int(attributes.get("maxsplit", -1))

    def compute(given: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        x = given[0]
        parts = [one.split(separator, most) for one in x.ravel().tolist()]
        counts = np.array([len(one) for one in parts], np.int64)
        return _padded(parts, "", x.shape), counts.reshape(x.shape)

    return compute


def _padded(rows: Sequence[Sequence[str]], pad: str, shape: tuple[int, ...]) -> np.ndarray:
    """A row of texts for each element of ``shape``, along a new last axis."""
    width = max(map(len, rows), default=0)
    result = np.full((len(rows), width), pad, object)
    for row, found in zip(result, rows, strict=True):
        row[: len(found)] = found
    return result.reshape(*shape, width)


def regex_full_match(attributes: dict[str, Any], opset: int) -> Compute:
    """Whether all of a text matches the pattern."""
    fits = re.compile(attributes["pattern"]).fullmatch

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = given[0]
        found = [fits(one) is not None for one in x.ravel().tolist()]
        return (np.array(found, np.bool_).reshape(x.shape),)

    return compute


def tfidf_vectorizer(attributes: dict[str, Any], opset: int) -> Compute:
    """How often each n-gram of the pool occurs in a row of strings, weighted.

    An n-gram may leave out the same number of elements, up to ``max_skip_count``, between its own.
    """
    pool, columns = _pool(attributes), np.array(attributes["ngram_indexes"], np.int64)
    width = int(columns.max(initial=-1)) + 1
    lengths = range(attributes["min_gram_length"], attributes["max_gram_length"] + 1)
    skips = int(attributes["max_skip_count"]) + 1
    weights, mode = np.ones(width, np.float32), attributes["mode"]
    if mode != "TF" and attributes.get("weights"):
        weights[columns] = attributes["weights"]

    def counted(words: list[Any]) -> Counter[int]:
        found: Counter[int] = Counter()
        for length in lengths:
            for step in range(1, skips + 1 if length > 1 else 2):
                reach = (length - 1) * step + 1
                grams = (
                    tuple(words[at : at + reach : step]) for at in range(len(words) - reach + 1)
                )
                found.update(columns[pool[gram]] for gram in grams if gram in pool)
        return found

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = given[0]
        if x.ndim not in (1, 2):
            raise FormError(f"its input has shape {list(x.shape)}; expected [C] or [B, C]")
        result = np.zeros((1 if x.ndim == 1 else len(x), width), np.float32)
        for row, words in zip(result, np.atleast_2d(x).tolist(), strict=False):
            for column, count in counted(words).items():
                row[column] = count
        if mode != "TF":
            result = (result > 0 if mode == "IDF" else result) * weights
        return (result.reshape(-1) if x.ndim == 1 else result,)

    return compute


def _pool(attributes: dict[str, Any]) -> dict[tuple[Any, ...], int]:
    """The n-grams with their positions; those of each length follow those of the one before."""
    words = attributes.get("pool_strings") or attributes.get("pool_int64s") or []
    starts = [*attributes["ngram_counts"], len(words)]
    grams = [
        tuple(words[at : at + length])
        for length, (start, end) in enumerate(itertools.pairwise(starts), 1)
        for at in range(start, end, length)
    ]
    return {gram: position for position, gram in enumerate(grams)}


STRING_OPERATORS: dict[str, HostOperator] = {
    "Cast": cast,
    "Gather": gather,
    "Identity": without_attributes(lambda given: (given[0],)),
    "RegexFullMatch": regex_full_match,
    "StringConcat": without_attributes(_concatenated),
    "StringNormalizer": string_normalizer,
    "StringSplit": string_split,
    "TfIdfVectorizer": tfidf_vectorizer,
}


# Tokenizer of com.microsoft, which skl2onnx writes for text vectorizers.


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
        return (_padded([tokens(text) for text in x.ravel().tolist()], pad, x.shape),)

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


# MurmurHash3 of com.microsoft, which skl2onnx writes for feature hashing.


_MASK = 0xFFFFFFFF


def murmur_hash(attributes: dict[str, Any], opset: int) -> Compute:
    """The 32-bit hash of each text's UTF-8 bytes, or of each number's; signed unless positive."""
    seed = int(attributes.get("seed", 0)) & _MASK
    dtype = np.uint32 if attributes.get("positive", 1) else np.int32

    def compute(given: Sequence[Any]) -> tuple[np.ndarray]:
        x = np.asarray(given[0])
        flat = x.reshape(-1)
        parts = [str(one).encode() if x.dtype.kind in "OU" else one.tobytes() for one in flat]
        hashes = np.array([murmur3_32(part, seed) for part in parts], np.uint32)
        return (hashes.view(dtype).reshape(x.shape),)

    return compute


def murmur3_32(data: bytes, seed: int) -> int:
    """Austin Appleby's MurmurHash3_x86_32."""
    whole = len(data) & ~3
    result = seed
    for word in np.frombuffer(data[:whole], "<u4").tolist():
        result = _rotated(result ^ _mixed(word), 13) * 5 + 0xE6546B64 & _MASK
    result ^= _mixed(int.from_bytes(data[whole:], "little"))
    result ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        result = (result ^ result >> shift) * factor & _MASK
    return result ^ result >> 16


def _mixed(word: int) -> int:
    return _rotated(word * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


HASHES: dict[str, HostOperator] = {"com.microsoft::MurmurHash3": murmur_hash}
