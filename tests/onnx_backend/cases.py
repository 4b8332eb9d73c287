"""The cases of onnx.backend.test: one per operator form, and those that ship with their data."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node
from onnx.backend.test.loader import load_model_tests

SHIPPED = ("simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class OnnxBackendCase:
    """A model with what it is fed and what must come out.

    Attributes
    ----------
    operator : str
        What it is about, as the list of unsupported operators prints it; a case that is spelled
        out by a function body counts for the operator whose body it is.
    """

    name: str
    operator: str
    source: Any

    @property
    def model(self) -> onnx.ModelProto:
        if self.source.model is not None:
            return self.source.model
        return onnx.load(Path(self.source.model_dir) / "model.onnx")

    def data_sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        """Inputs and wanted outputs, in the order of the model's."""
        for inputs, outputs in self.source.data_sets or self._stored_sets():
            yield [_array(x) for x in inputs], [_array(y) for y in outputs]

    def _stored_sets(self) -> Iterator[tuple[list[Any], list[Any]]]:
        model = self.model
        for folder in sorted(Path(self.source.model_dir).glob("test_data_set*")):
            yield (
                _stored(folder, "input", model.graph.input),
                _stored(folder, "output", model.graph.output),
            )


def all_cases(modules: Sequence[str] = ()) -> list[OnnxBackendCase]:
    """Every case that needs no download, in the order of their names.

    Where modules of ONNX's node cases are named, their cases alone are made and those with data:
    to make all takes five seconds, most of them for what pooling in three dimensions gives.
    """
    for name in modules:
        import_module(f"{node.__name__}.{name}")
    nodes = list(node._NodeTestCases) if modules else node.collect_testcases(None)
    of_name = {case.name: _operator(case.model) for case in nodes}
    found = [
        OnnxBackendCase(case.name, of_name.get(_base(case.name), of_name[case.name]), case)
        for case in nodes
    ]
    for kind in SHIPPED:
        found += [OnnxBackendCase(case.name, kind, case) for case in load_model_tests(kind=kind)]
    return sorted(found, key=lambda case: case.name)


def _base(name: str) -> str:
    return re.sub(r"_expanded(_ver\d+)?$", "", name)


def _operator(model: onnx.ModelProto) -> str:
    node = model.graph.node[0]
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _stored(folder: Path, side: str, values: Any) -> list[Any]:
    count = len(list(folder.glob(f"{side}_*.pb")))
    paths = [folder / f"{side}_{index}.pb" for index in range(count)]
    return [_read(path, value.type) for path, value in zip(paths, values, strict=False)]


def _read(path: Path, type_: onnx.TypeProto) -> Any:
    kind = type_.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
