"""What an exported model is, as the constants of a C header: names, dtypes and shapes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from tvm_ext.model_inputs import HOLDERS
from tvm_ext.tensor_spec import TensorSpec

# DLPack's names for the codes of element types that C compilers know; others are numbers.
_CODES = {0: "kDLInt", 1: "kDLUInt", 2: "kDLFloat", 4: "kDLBfloat", 6: "kDLBool"}

_RANK_OF_THE_RUN = ("...",)


@dataclass(frozen=True)
class TensorConstants:
    """One input or output as initialisers in C.

    Attributes
    ----------
    id : str
        Part of the names of its arrays: ``input0``.
    comment : str
        What it is, for people; fits into a comment.
    literal, dtype, rank : str
        The name as a string, a ``DLDataType``, and the number of axes.
    shape, least, most : str
        Arrays of sizes; empty where there are none.
    """

    id: str
    comment: str
    literal: str
    dtype: str
    rank: str
    shape: str
    least: str = ""
    most: str = ""


def header_values(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], out_params: Sequence[str]
) -> dict[str, Any]:
    """What the header's template needs to know of a model's inputs and outputs.

    ``out_params`` are the names of the outputs that a run can write to a caller's memory.
    """
    shapes = [_known_shape(spec) for spec in (*inputs, *outputs)]
    names = dict.fromkeys(size for shape in shapes for size in shape if isinstance(size, str))
    places = {name: place for place, name in enumerate(names)}
    order = [spec.name for spec in outputs]
    return {
        "inputs": [_constants(s, f"input{i}", places) for i, s in enumerate(inputs)],
        "outputs": [_constants(s, f"output{i}", places) for i, s in enumerate(outputs)],
        "size_names": [string_literal(name) for name in names],
        "out_params": [order.index(name) for name in out_params],
    }


def identifier(text: str) -> str:
    """A name for C that reads like ``text``: letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_") or "model"
    return name if name[0].isalpha() else f"model_{name}"


def string_literal(text: str) -> str:
    """The text as a string of C, in UTF-8."""
    # Octal numbers end after three digits; hexadecimal ones would take in what follows them.
    signs = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", errors="replace")
    )
    return f'"{"".join(signs)}"'


def comment_text(text: str) -> str:
    """The text as it can stand in a comment of C, on one line."""
    shown = "".join(sign if sign.isprintable() else "?" for sign in text)
    return shown.replace("*/", "* /").replace("/*", "/ *")


def _known_shape(spec: TensorSpec) -> tuple[int | str, ...]:
    """The shape; empty also where a run decides the number of axes."""
    return () if spec.shape == _RANK_OF_THE_RUN else spec.shape


def _constants(spec: TensorSpec, label: str, places: Mapping[str, int]) -> TensorConstants:
    held = HOLDERS.get(spec.dtype)
    dtype = tvm_ffi.dtype(held or spec.dtype)
    code = _CODES.get(dtype.type_code, dtype.type_code)
    shape = _known_shape(spec)
    sizes = [-1 - places[size] if isinstance(size, str) else size for size in shape]
    note = f", each in a byte: {held}" if held else ""
    ranges = spec.ranges if any(spec.ranges) else ()
    return TensorConstants(
        id=label,
        comment=comment_text(spec.describe() + note),
        literal=string_literal(spec.name),
        dtype=f"{{{code}, {dtype.bits}, {dtype.lanes}}}",
        rank=str(-1 if spec.shape == _RANK_OF_THE_RUN else len(shape)),
        shape=_array(sizes),
        least=_array([one.low if one else 0 for one in ranges]),
        most=_array([one.high if one else "INT64_MAX" for one in ranges]),
    )


def _array(values: Sequence[int | str]) -> str:
    return f"{{{', '.join(map(str, values))}}}" if values else ""
