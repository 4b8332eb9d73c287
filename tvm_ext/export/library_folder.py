"""Writes a compiled model as a folder that C and C++ programs build on, whole or not at all."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import tvm_ffi
from jinja2 import Environment, PackageLoader, StrictUndefined

from tvm_ext.artifact.manifest import TargetRecord, VersionsRecord
from tvm_ext.configs.atomic_file import new_folder
from tvm_ext.configs.errors import ArtifactError
from tvm_ext.hardware.cpu.features import FLAGS
from tvm_ext.hardware.cpu.system import BASELINE_FLAGS
from tvm_ext.model_inputs import HOLDERS
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.tensor_spec import TensorSpec, listed

_SOURCES = ("tvmx_model.h", "tvmx_model.c")
_HEADER = "model.h.j2"
_TEMPLATES = (_HEADER, "example.cpp.j2", "CMakeLists.txt.j2")

# Functions that TVM has in Python alone, and what is said of the operators that call them.
_PYTHON_FUNCTIONS = re.compile(rb"relax\.run\.([a-z_]+)")


def write_library_folder(
    folder: str | Path,
    name: str | None,
    library: bytes,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: TargetRecord,
    report: CompileReport,
    threads: int,
) -> list[Path]:
    """Writes library, header, sources, example and build file; returns their paths.

    Parameters
    ----------
    folder : str or Path
        A new folder, or an empty one.
    name : str, optional
        Of library, header and constants; after the model's file if None.
    library : bytes
        The shared library with program and weights.
    inputs, outputs, target, report, threads
        Of the model.

    Raises
    ------
    ArtifactError
        The program cannot be run without Python.
    OutputPathError
        The folder is not empty, or cannot be written.
    """
    _require_plain_program(library, report)
    name = identifier(name or report.model_name)
    texts = _rendered(name, inputs, outputs, target, report, threads)
    texts |= {file: files("tvm_ext.export").joinpath(file).read_text("utf-8") for file in _SOURCES}
    with new_folder(folder) as made:
        (made / f"{name}.so").write_bytes(library)
        for file, text in texts.items():
            (made / file).write_text(text, "utf-8")
    return [Path(folder) / file for file in (f"{name}.so", *sorted(texts))]


def _rendered(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: TargetRecord,
    report: CompileReport,
    threads: int,
) -> dict[str, str]:
    versions = VersionsRecord.installed()
    environment = Environment(
        loader=PackageLoader("tvm_ext.export", ""),
        # What is written is C, not HTML; texts of the model pass through literals and comments.
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    values = {
        **header_values(inputs, outputs, report.memory.out_params),
        "name": name,
        "model": comment_text(report.model_name),
        "target": comment_text(target.name),
        "threads": threads,
        "cpu_flags": " ".join(cpu_flags(target)),
        "package_version": versions.tvm_ext,
        "tvm_version": versions.tvm,
        "ffi_version": versions.tvm_ffi,
    }
    texts = {one: environment.get_template(one).render(values) for one in _TEMPLATES}
    return {
        f"{name}.h" if template == _HEADER else template.removesuffix(".j2"): text
        for template, text in texts.items()
    }


def cpu_flags(target: TargetRecord) -> list[str]:
    """What a CPU must have for the code, as Linux calls it, without what every such CPU has."""
    needed = set(target.required_features)
    flags = FLAGS.get(target.machine, {})
    baseline = BASELINE_FLAGS.get(target.machine, set())
    return [flag for flag, names in flags.items() if needed & set(names) and flag not in baseline]


def _require_plain_program(library: bytes, report: CompileReport) -> None:
    called = sorted({name.decode() for name in _PYTHON_FUNCTIONS.findall(library)})
    if called:
        raise ArtifactError(
            f"cannot export {report.model_name}: TVM computes {listed(called)} in Python; expected "
            "a model without such operators: save it as .tvmx and run it in Python"
        )
    if report.memory.copied_outputs is None:
        raise ArtifactError(
            f"cannot export {report.model_name}: its program may write to its inputs, because an "
            "older version made it or a user's pass changed its storage; expected one that only "
            "reads them: compile the model again"
        )


# What the model is, as the constants of its C header: names, dtypes and shapes.

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
        most=_array([one.high if one and one.has_end else "INT64_MAX" for one in ranges]),
    )


def _array(values: Sequence[int | str]) -> str:
    return f"{{{', '.join(map(str, values))}}}" if values else ""
