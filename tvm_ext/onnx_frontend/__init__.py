"""ONNX in, Relax out. This is the only package that knows ONNX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import tvm

# Ahead of all that imports onnx_ir.
import tvm_ext.onnx_frontend.deferred_sympy  # noqa: F401

# isort: split
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.control_flow import CONTROL_FLOW
from tvm_ext.onnx_frontend.host.partition import partition_graph
from tvm_ext.onnx_frontend.importer import ImportedGraph, import_graph
from tvm_ext.onnx_frontend.load import load_with_weights
from tvm_ext.onnx_frontend.operator_support import require_supported
from tvm_ext.onnx_frontend.prepare import name_nodes, operator_counts, prepare
from tvm_ext.onnx_frontend.signature import (
    input_specs,
    model_inputs,
    name_dimensions,
    name_sizes_of_branches,
    output_specs,
    set_input_shapes,
    with_room_for_windows,
)
from tvm_ext.onnx_frontend.value_sizes import refuse_negative_sizes
from tvm_ext.onnx_frontend.weights import StoredWeights, put_back
from tvm_ext.tensor_spec import SizeRange, TensorSpec


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
    ranges : dict[str, SizeRange]
        The sizes that symbolic dimensions may have, by name, where they are limited.
    warnings : tuple[str, ...]
        What is wrong with the model, or with the sizes given for it, and does no harm.
    """

    name: str
    mod: tvm.IRModule
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    onnx_operators: dict[str, int]
    prepared_operators: dict[str, int]
    ranges: dict[str, SizeRange]
    warnings: tuple[str, ...] = ()


class SizedModel(NamedTuple):
    """A model as given, with the sizes that were given.

    Attributes
    ----------
    name : str
        The file's name without its ending, or the name of the graph.
    model : onnx.ModelProto
        Checked, its nodes sorted.
    ranges, warnings
        As of ``ImportedModel``.
    stored : StoredWeights
        The weights of a model above 2 GB, which are inputs of ``model``.
    """

    name: str
    model: onnx.ModelProto
    ranges: dict[str, SizeRange]
    stored: StoredWeights
    warnings: tuple[str, ...]


class PreparedModel(NamedTuple):
    """A model ahead of its import.

    Attributes
    ----------
    name, model, ranges, stored, warnings
        As of ``SizedModel``.
    prepared : onnx.ModelProto
        With shapes and constants propagated, in the forms that converters take; the weights of a
        model above 2 GB are initializers of it, without values.
    """

    name: str
    model: onnx.ModelProto
    prepared: onnx.ModelProto
    ranges: dict[str, SizeRange]
    stored: StoredWeights
    warnings: tuple[str, ...]


def read_model(
    source: str | Path | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> SizedModel:
    """The model with sizes for its inputs, as given.

    Raises
    ------
    ModelError, InputError
        The model or the shapes given for it are not valid.
    """
    model, stored, warnings = load_with_weights(source)
    name = model_name(source, model)
    given, contradictions = set_input_shapes(model, input_shapes or {}, name)
    if input_shapes:
        refuse_negative_sizes(model, name)
    name_dimensions(model.graph)
    name_sizes_of_branches(model)
    name_nodes(model.graph)
    ranges = {
        dim.dim_param: given[value.name, axis]
        for value in model_inputs(model.graph)
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if (value.name, axis) in given
    }
    return SizedModel(name, model, ranges, stored, (*warnings, *contradictions))


def prepare_model(
    source: str | Path | onnx.ModelProto,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> PreparedModel:
    """The model with sizes for its inputs, as given and as it is imported; raises as read_model."""
    name, model, ranges, stored, warnings = read_model(source, input_shapes)
    prepared = prepare(model, name)
    put_back(prepared.graph, stored)
    return PreparedModel(name, model, prepared, ranges, stored, warnings)


def part_of(whole: PreparedModel, part: onnx.ModelProto) -> PreparedModel:
    """A part of a model that was partitioned (see ``host.partition``), ready to be imported."""
    name_dimensions(part.graph)
    name_nodes(part.graph)
    return whole._replace(prepared=part)


def import_model(
    source: "str | Path | onnx.ModelProto | PreparedModel",
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> ImportedModel:
    """ONNX to Relax.

    Raises
    ------
    ModelError, UnsupportedOperatorError, InputError
        The model or the shapes given for it are not valid, something in it has no converter, or it
        has several compiled parts.
    """
    if isinstance(source, PreparedModel):
        return import_prepared(*source)
    return import_prepared(*_compiled_part(prepare_model(source, input_shapes)))


def _compiled_part(whole: PreparedModel) -> PreparedModel:
    """All of a model, or the only part of it that does not run on the host."""
    partition = partition_graph(whole.prepared, whole.model.graph)
    if partition is None:
        return whole
    if len(partition.parts) != 1:
        raise ModelError(
            f"{whole.name} is compiled in {len(partition.parts)} parts with steps on the host "
            "between them; expected one part: use this model with compile, run or check only"
        )
    return part_of(whole, partition.parts[0])


def import_prepared(
    name: str,
    model: onnx.ModelProto,
    prepared: onnx.ModelProto,
    ranges: Mapping[str, SizeRange] | None = None,
    stored: StoredWeights | None = None,
    warnings: tuple[str, ...] = (),
) -> ImportedModel:
    """As ``import_model``, from what ``prepare_model`` returned."""
    require_supported(prepared.graph)
    mod, allowed = _imported(model, prepared, name, stored or StoredWeights(), ranges or {})
    return ImportedModel(
        name=name,
        mod=mod,
        inputs=input_specs(prepared.graph, mod["main"], allowed),
        outputs=output_specs(prepared.graph, mod["main"]),
        onnx_operators=operator_counts(model.graph),
        prepared_operators=operator_counts(prepared.graph),
        ranges=dict(ranges or {}),
        warnings=warnings,
    )


# The first one finds out with which sizes the model runs, others what follows from that.
_MOST_IMPORTS = 3


def _imported(
    model: onnx.ModelProto,
    prepared: onnx.ModelProto,
    name: str,
    stored: StoredWeights,
    ranges: Mapping[str, SizeRange],
) -> tuple[tvm.IRModule, Mapping[str, SizeRange]]:
    """The module of a model, and the sizes for which it holds.

    A model whose operators run with some sizes only is imported again for these: what is cut to a
    length then has that length, an image has pixels, and nothing broadcasts. A branch need not
    run, and what a part of a model is given is no input of it.
    """
    given = [
        [value.name for value in model_inputs(graph)] for graph in (prepared.graph, model.graph)
    ]
    nodes = prepared.graph.node
    runs_all = given[0] == given[1] and not any(node.op_type in CONTROL_FLOW for node in nodes)
    imported = import_graph(prepared, name, stored, ranges)
    single: frozenset[str] = frozenset()
    results: dict[Any, int] = {}
    allowed, found = dict(ranges), _allowed(imported, ranges, runs_all)
    # What was not compared before may say more: a table's end, once a batch is known to be 1.
    for _ in range(_MOST_IMPORTS - 1):
        known = single | _known_single(imported, found, runs_all)
        agreed = results | (dict(imported.results) if runs_all else {})
        if not imported.is_unclear or (found, known, agreed) == (allowed, single, results):
            break
        allowed, single, results = found, known, agreed
        imported = import_graph(prepared, name, stored, allowed, single, results)
        found = _allowed(imported, allowed, runs_all)
    if allowed == ranges:
        # That there are any pixels is nothing to say where no kernel relies on it.
        found = {n: one for n, one in found.items() if n in ranges or one != SizeRange(1)}
    return imported.mod, found


def _allowed(
    imported: ImportedGraph, ranges: Mapping[str, SizeRange], runs_all: bool
) -> dict[str, SizeRange]:
    """The sizes within ``ranges`` with which all operators run."""
    allowed = with_room_for_windows(ranges, imported.mod["main"])
    for dimension, most in imported.largest.items() if runs_all else ():
        least = allowed.get(dimension, SizeRange(0)).low
        if least <= most:
            allowed[dimension] = SizeRange(least, most)
    for dimension in imported.some if runs_all else ():
        low, high = allowed.get(dimension, SizeRange(0)).ends
        if low < 1 <= high:
            allowed[dimension] = SizeRange(1, high)
    return allowed


def _known_single(
    imported: ImportedGraph, allowed: Mapping[str, SizeRange], runs_all: bool
) -> frozenset[str]:
    """Dimensions of inputs that must be 1, and may be."""
    single = imported.single if runs_all else ()
    return frozenset(name for name in single if 1 in allowed.get(name, SizeRange(0)))


def model_name(source: str | Path | onnx.ModelProto, model: onnx.ModelProto) -> str:
    """The file's name without its ending, or the name of the graph."""
    if isinstance(source, str | Path):
        return Path(source).stem
    return model.graph.name or "model"
