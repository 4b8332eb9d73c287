"""ONNX in, Relax out. This is the only package that knows ONNX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import tvm

from tvm_ext.onnx_frontend.dimension_names import name_dimensions
from tvm_ext.onnx_frontend.importer import import_graph
from tvm_ext.onnx_frontend.input_shapes import freeze_input_shapes
from tvm_ext.onnx_frontend.load import load_model
from tvm_ext.onnx_frontend.negative_sizes import refuse_negative_sizes
from tvm_ext.onnx_frontend.prepare import name_nodes, operator_counts, prepare
from tvm_ext.onnx_frontend.signature import input_specs, output_specs
from tvm_ext.onnx_frontend.support import require_supported
from tvm_ext.tensor_spec import TensorSpec


@dataclass(frozen=True)
class ImportedModel:
    """What the graph passes start from.

    Attributes
    ----------
    mod : tvm.IRModule
        ``main`` takes the inputs in the order of ``inputs`` and returns the outputs in theirs.
    inputs, outputs : tuple[TensorSpec, ...]
        Names as in the ONNX model, dtypes and shapes after freezing.
    onnx_operators, prepared_operators : dict[str, int]
        Operator counts as given and after preparation.
    prepared : onnx.ModelProto
        The model that was imported: the given one with shapes and constants propagated.
    """

    name: str
    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    onnx_operators: dict[str, int]
    prepared_operators: dict[str, int]
    prepared: onnx.ModelProto


def prepare_model(
    source: str | Path | onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[str, onnx.ModelProto, onnx.ModelProto]:
    """The model's name, the checked model with frozen shapes, and the prepared one.

    Raises
    ------
    ModelError, InputError
        The model or the shapes given for it are not valid.
    """
    model = load_model(source)
    name = model_name(source, model)
    freeze_input_shapes(model, input_shapes or {}, name)
    if input_shapes:
        refuse_negative_sizes(model, name)
    name_dimensions(model.graph)
    name_nodes(model.graph)
    return name, model, prepare(model, name)


def import_model(
    source: str | Path | onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]] | None = None
) -> ImportedModel:
    """ONNX to Relax.

    Raises
    ------
    ModelError, UnsupportedOperatorError, InputError
        The model or the shapes given for it are not valid, or something in it has no converter.
    """
    name, model, prepared = prepare_model(source, input_shapes)
    return import_prepared(name, model, prepared)


def import_prepared(name: str, model: onnx.ModelProto, prepared: onnx.ModelProto) -> ImportedModel:
    """As ``import_model``, from what ``prepare_model`` returned."""
    require_supported(prepared.graph)
    mod = import_graph(prepared, name)
    return ImportedModel(
        name=name,
        mod=mod,
        inputs=input_specs(prepared.graph, mod["main"]),
        outputs=output_specs(prepared.graph, mod["main"]),
        onnx_operators=operator_counts(model.graph),
        prepared_operators=operator_counts(prepared.graph),
        prepared=prepared,
    )


def model_name(source: str | Path | onnx.ModelProto, model: onnx.ModelProto) -> str:
    """The file's name without its ending, or the name of the graph."""
    if isinstance(source, str | Path):
        return Path(source).stem
    return model.graph.name or "model"
