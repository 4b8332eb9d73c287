"""Which models are measured, in which shapes: from the command line and from files."""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tvm_ext.cli.input_parsing import parse_input_shapes
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.configs.loader import ConfigModel, check_config, read_toml
from tvm_ext.errors import ConfigError, InputError, ModelError
from tvm_ext.onnx_frontend.load import load_model

FILE_FORMAT = """\
format of --models FILE (.toml, or .json with the same keys; paths are relative to the file):

  [[model]]
  path = "detector.onnx"
  name = "detector 320"              # optional; the file's name when left out
  shapes = { images = [1, 3, 320, 320] }  # optional; freezes dynamic dimensions
  inputs = "detector.npz"            # optional; one array an input, else random values

  [[model]]
  path = "classifier.onnx"
"""


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that name models: paths, files that list them, and shapes of inputs."""
    add = parser.add_argument
    add("models", nargs="*", type=Path, metavar="MODEL.onnx")
    add("--models", dest="files", action="append", default=[], type=Path, metavar="FILE")
    add(
        "--input-shape",
        action="append",
        default=[],
        metavar="NAME=SIZES",
        help="freeze an input's dimensions, in every model that has it",
    )


Size = Annotated[int, Field(gt=0)]


@dataclass(frozen=True)
class ModelEntry:
    """One model to measure.

    Attributes
    ----------
    name : str
        What tables call it.
    path : Path
        The ONNX file.
    shapes : mapping of input name to sizes
        Freezes dynamic dimensions.
    inputs : Path or None
        File of the input values; random ones without it.
    """

    name: str
    path: Path
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    inputs: Path | None = None


class _Model(ConfigModel):
    path: str
    name: str | None = None
    shapes: dict[str, list[Size]] = Field(default_factory=dict)
    inputs: str | None = None


class _ModelFile(ConfigModel):
    model: list[_Model]


def read_model_file(path: Path) -> list[ModelEntry]:
    """The models that a TOML or JSON file lists.

    Raises
    ------
    ConfigError
        The file cannot be read, or does not have the form that ``FILE_FORMAT`` shows.
    """
    data = _read_json(path) if path.suffix == ".json" else read_toml(path)
    return [
        ModelEntry(
            name=model.name or Path(model.path).stem,
            path=path.parent / model.path,
            shapes=model.shapes,
            inputs=path.parent / model.inputs if model.inputs else None,
        )
        for model in check_config(data, _ModelFile, path.name).model
    ]


def entries_of(
    paths: Iterable[Path], shapes: Mapping[str, Sequence[int]], files: Iterable[Path]
) -> list[ModelEntry]:
    """All models: those named by path, each with the shapes whose inputs it has, then the files'.

    Raises
    ------
    InputError
        No model has an input of some name in ``shapes``.
    ConfigError
        As ``read_model_file``.
    """
    entries = []
    known: set[str] = set()
    for path in paths:
        names = _input_names(path)
        # A model that cannot be read keeps all shapes: compiling it will say what is wrong.
        mine = shapes if names is None else {n: s for n, s in shapes.items() if n in names}
        known |= shapes.keys() if names is None else names
        entries.append(ModelEntry(path.stem, path, mine))
    for name in shapes:
        if name not in known:
            raise InputError(
                f"--input-shape names '{name}', an input that no model has; "
                f"{nearest_hint(name, known)}"
            )
    return [*entries, *(entry for file in files for entry in read_model_file(file))]


def _input_names(path: Path) -> set[str] | None:
    try:
        graph = load_model(path).graph
    except ModelError:
        return None
    return {value.name for value in graph.input}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; expected a JSON file, check the path"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path.name} is not valid JSON ({error}); correct it") from error
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path.name} holds a {type(data).__name__}; expected a table with the key 'model'"
        )
    return data


def fixed_shapes(texts: Sequence[str]) -> dict[str, list[int]]:
    """The shapes of ``--input-shape``, all of numbers: what is timed has one size."""
    shapes: dict[str, list[int]] = {}
    for name, given in parse_input_shapes(texts).items():
        shapes[name] = [size for size in given if isinstance(size, int)]
        if len(shapes[name]) < len(given):
            raise InputError(
                f"--input-shape of '{name}' leaves a size dynamic; expected numbers, since what is "
                "timed has one size: write such as x=1,3,224,224"
            )
    return shapes
