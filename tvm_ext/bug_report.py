"""What a defect is reported with: one file from which it can be reproduced without the weights."""

import json
import platform
import tempfile
import traceback
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_ext.api import TargetSource, compile
from tvm_ext.artifact import VersionsRecord
from tvm_ext.check.inputs import random_inputs
from tvm_ext.compiler.backend import programs_of
from tvm_ext.configs.atomic_file import OutputPathError, check_writable, replacing
from tvm_ext.errors import ModelError, TvmExtError
from tvm_ext.hardware.targets import program_target
from tvm_ext.onnx_frontend.weights import KEPT_INTEGERS, KEPT_NUMBERS, without_weights

_MODEL, _ABOUT, _FACTS, _TRACEBACK = "model.onnx", "README.txt", "facts.json", "traceback.txt"
_PIPELINE = "pipeline.toml"
# The module ahead of the step that failed, and the one before that.
_MODULES_KEPT = 2


@dataclass(frozen=True)
class BugReport:
    """What was found and written.

    Attributes
    ----------
    path : Path
        The file.
    failure : str
        The message of the error; empty when the model compiles and runs.
    holds : list[str]
        The files in it, each with what it is.
    reproduces : bool or None
        Whether the model fails alike without its weights; None where it is not in the file.
    """

    path: Path
    failure: str
    holds: list[str]
    reproduces: bool | None


def write_bug_report(
    model: str | Path, path: str | Path, target: TargetSource = "cpu", **options: Any
) -> BugReport:
    """Compiles and runs a model, and writes what shows how it fails into one ZIP archive.

    The archive holds no weights: see ``without_weights``.

    Parameters
    ----------
    model : str or Path
        The file of an ONNX model.
    path : str or Path
        The file to write, which must not exist.
    target, options
        As for ``tvm_ext.compile``.

    Raises
    ------
    OutputPathError
        There is a file of that name, or it cannot be written.
    ModelError
        There is no such model.
    """
    model, path = Path(model), Path(path)
    if not model.is_file():
        raise ModelError(f"{model}: no such file; expected an ONNX model: check the path")
    if path.exists():
        raise OutputPathError(
            f"{path} exists already; expected a free name: choose another one with -o"
        )
    check_writable(path)
    files: dict[str, tuple[str, bytes | str]] = {}
    with tempfile.TemporaryDirectory(prefix="tvm-ext-report-") as folder:
        error = _failure(model, target, {**options, "dump_ir": Path(folder) / "ir"})
        for number, file in enumerate(sorted((Path(folder) / "ir").glob("*"))[-_MODULES_KEPT:]):
            what = "the program ahead of the step that failed, or of the last one"
            files[f"ir/{number}_{file.name}"] = what, file.read_bytes()
        reproduces = None
        try:
            stripped = without_weights(model).SerializeToString()
        except ModelError as refusal:
            files["no_model.txt"] = "why the model is not here", str(refusal)
        else:
            files[_MODEL] = _MODEL_NOTE, stripped
            alone = Path(folder) / model.name
            alone.write_bytes(stripped)
            again = _failure(alone, target, options)
            reproduces = _same(error, again)
    message = str(error) if error is not None else ""
    facts = _facts(model, target, options, error, reproduces)
    files[_FACTS] = (
        "versions, machine, target, options and the message",
        json.dumps(facts, indent=2, default=str),
    )
    own = options.get("pipeline")
    if isinstance(own, str | Path) and Path(own).is_file():
        files[_PIPELINE] = "the pipeline that the model was compiled with", Path(own).read_bytes()
    if error is not None:
        text = "".join(traceback.format_exception(error)).replace(str(Path.home()), "~")
        files[_TRACEBACK] = "where it failed, with paths of this machine", text
    holds = [f"{name}: {what}" for name, (what, _) in files.items()]
    files[_ABOUT] = "", "\n".join(["A report on tvm-ext. It holds", *holds, ""])
    _write(path, {name: content for name, (_, content) in files.items()})
    return BugReport(path, message, holds, reproduces)


_MODEL_NOTE = (
    "the model's graph with all its names, its weights replaced by ones (integers of up to "
    f"{KEPT_INTEGERS} elements and numbers of up to {KEPT_NUMBERS} as they were)"
)


def _failure(model: Path, target: TargetSource, options: Mapping[str, Any]) -> Exception | None:
    """How the model fails to compile or to run; None when it does not."""
    try:
        compiled = compile(model, target, **options)
        if programs_of(program_target(target)).device == "cpu":
            compiled.run(random_inputs(compiled.inputs))
    except Exception as error:  # noqa: BLE001
        # Whatever it is, it is what the report is about.
        return error
    return None


def _same(first: Exception | None, second: Exception | None) -> bool:
    return type(first) is type(second) and _cause(first) == _cause(second)


def _cause(error: BaseException | None) -> str:
    """What it comes from, without names of files."""
    while error is not None and error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def _facts(
    model: Path,
    target: TargetSource,
    options: Mapping[str, Any],
    error: Exception | None,
    reproduces: bool | None,
) -> dict[str, Any]:
    try:
        machine: Any = program_target(target).model_dump(mode="json")
    except TvmExtError as refusal:
        machine = str(refusal)
    return {
        "model": model.name,
        "bytes": model.stat().st_size,
        "message": str(error) if error is not None else "",
        "fails alike without weights": reproduces,
        "versions": VersionsRecord.installed().model_dump(),
        "system": platform.platform(),
        "target": machine,
        "options": {name: value for name, value in options.items() if value},
    }


def _write(path: Path, files: Mapping[str, bytes | str]) -> None:
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
