"""Writes a compiled model as a folder that C and C++ programs build on, whole or not at all."""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from tvm_ext.artifact.manifest import TargetRecord, VersionsRecord
from tvm_ext.configs.atomic_file import new_folder
from tvm_ext.configs.errors import ArtifactError
from tvm_ext.export.model_header import comment_text, header_values, identifier
from tvm_ext.hardware.cpu.features import FLAGS
from tvm_ext.hardware.cpu.system import BASELINE_FLAGS
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
            f"cannot export {report.model_name}: its program, of an older version or with storage "
            "that a pass of a user changed, may write to its inputs; expected one that reads them "
            "only: compile the model again"
        )
