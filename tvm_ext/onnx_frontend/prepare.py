"""Simplifies a model at ONNX level until TVM's importer can read it.

onnxscript's constant folding propagates shapes, shape arithmetic and constants. It was chosen over
onnxslim (same coverage) because it keeps node names and fuses nothing, so that a report can say
what was fused and why; and over plain shape inference, which leaves the arithmetic in place.
onnxscript's rewriter is left out for the same reason: folding BatchNormalization is a graph pass.
"""

import logging
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
from onnxscript import optimizer

from tvm_ext.configs.progress import tell
from tvm_ext.errors import TvmExtError
from tvm_ext.onnx_frontend.batch_loops import batch_loops
from tvm_ext.onnx_frontend.canonicalize import (
    canonicalize,
    cast_likes_to_casts,
    spell_constants_out,
    whole_slices_to_identities,
)
from tvm_ext.onnx_frontend.containers import resolve_containers, splits_hidden
from tvm_ext.onnx_frontend.diagnostics import preparation_error
from tvm_ext.onnx_frontend.fold_tree_ensembles import fold_tree_ensembles
from tvm_ext.onnx_frontend.loop_carried_shapes import infer_carried_shapes
from tvm_ext.onnx_frontend.loop_rewrites import (
    appending_loops_to_scans,
    hoist_loop_invariants,
    scans_to_loops,
    unroll_loops,
)
from tvm_ext.onnx_frontend.microsoft import to_default_domain
from tvm_ext.onnx_frontend.ml_rewrites import keep_tree_inputs_exact, number_string_labels
from tvm_ext.onnx_frontend.narrow_types import hold_narrow_types
from tvm_ext.onnx_frontend.onnx_graph import DEFAULT_DOMAINS, nodes_within
from tvm_ext.onnx_frontend.operator_support import align_opsets, expand_functions
from tvm_ext.onnx_frontend.value_sizes import known_elements, range_steps, require_countable

# Elements of the largest tensors that constant folding may read and write: shape arithmetic and
# position tables are far below, embedding tables above.
FOLD_INPUT_LIMIT = 1 << 20
FOLD_OUTPUT_LIMIT = 1 << 22
FOLD_ROUNDS = 8

# Where nobody asked for logs, Python prints warnings of libraries: those about what was not folded
# concern no user.
for _name in ("onnxscript", "onnx_ir"):
    logging.getLogger(_name).addHandler(logging.NullHandler())

# Operators whose results can be much larger than all that they read.
_SIZED_BY_VALUES = frozenset(
    {
        *("BlackmanWindow", "CenterCropPad", "Col2Im", "ConstantOfShape", "DFT", "Einsum"),
        *("Expand", "HammingWindow", "HannWindow", "MaxUnpool", "MelWeightMatrix", "OneHot"),
        *("Pad", "Range", "Resize", "STFT", "Tile", "Upsample"),
    }
)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Gives every unnamed node the name ``OpType_index`` so that reports can point at it."""
    taken = {node.name for node in graph.node}
    for index, node in enumerate(graph.node):
        if node.name:
            continue
        name = f"{node.op_type}_{index}"
        while name in taken:
            name += "_"
        taken.add(name)
        node.name = name


def operator_counts(graph: onnx.GraphProto) -> dict[str, int]:
    """How often each operator occurs in the graph (without subgraphs), most frequent first."""
    return dict(Counter(node.op_type for node in graph.node).most_common())


def prepare(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """The simplified model: same inputs, outputs and values; node names survive.

    Raises
    ------
    ModelError
        The model cannot be simplified because its graph contradicts itself, or one of its values
        is too large.
    """
    _type_alike(model.graph)
    _forget_changing_sizes(model.graph)
    try:
        simplified = ir.serde.deserialize_model(_without_map_types(model))
        # NumPy computes the constants: 0 / 0 in a branch that is never chosen is no news.
        with np.errstate(all="ignore"):
            align_opsets(simplified)
            ir.passes.common.InlinePass()(simplified)
            to_default_domain(simplified)
            number_string_labels(simplified)
            resolve_containers(simplified)
            cast_likes_to_casts(simplified)
            _fold(simplified)
            while expand_functions(simplified) or _write_out(simplified):
                _fold(simplified)
            ir.passes.common.NameFixPass()(simplified)
            fold_tree_ensembles(simplified)
        hold_narrow_types(simplified)
        canonicalize(simplified)
        keep_tree_inputs_exact(simplified)
        ir.passes.common.TopologicalSortPass()(simplified)
        require_countable(simplified, label)
        prepared = ir.serde.serialize_model(simplified)
    except TvmExtError:
        raise
    except Exception as error:
        # Whatever onnxscript, ONNX's own NumPy operators and our rewrites raise at forms that the
        # checker lets through.
        raise preparation_error(model, label, error) from error
    name_nodes(prepared.graph)
    return prepared


def _type_alike(graph: onnx.GraphProto) -> None:
    """Gives outputs that are inputs the types of these; onnx_ir believes the output instead."""
    given = {value.name: value.type for value in graph.input}
    for value in graph.output:
        if value.name in given:
            value.type.CopyFrom(given[value.name])


def _forget_changing_sizes(graph: onnx.GraphProto) -> None:
    """Leaves of the sizes that a Loop's body declares for its variables those that stay the same.

    Exporters write those of the first iteration, and ONNX Runtime warns at the next: what is folded
    may not rest on them.
    """
    for node in nodes_within(graph):
        if node.op_type != "Loop" or node.domain not in DEFAULT_DOMAINS:
            continue
        body = next(attribute.g for attribute in node.attribute if attribute.name == "body")
        for before, after in zip(body.input[2:], body.output[1:], strict=False):
            if before.name != after.name:
                _keep_common_sizes(before.type.tensor_type, after.type.tensor_type)


def _keep_common_sizes(before: onnx.TypeProto.Tensor, after: onnx.TypeProto.Tensor) -> None:
    sizes = after.shape.dim
    if len(sizes) != len(before.shape.dim):
        before.ClearField("shape")
        return
    for old, new in zip(before.shape.dim, sizes, strict=True):
        if old != new:
            old.Clear()


def _without_map_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or a copy in which values with maps, which onnx_ir cannot read, have no type."""
    if not any(_holds_map(v.type) for v in _described(model.graph)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in _described(copy.graph):
        if _holds_map(value.type):
            value.ClearField("type")
    return copy


def _described(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    return [*graph.input, *graph.output, *graph.value_info]


def _holds_map(type_: onnx.TypeProto) -> bool:
    kind = type_.WhichOneof("value")
    if kind in ("sequence_type", "optional_type"):
        return _holds_map(getattr(type_, kind).elem_type)
    return bool(kind == "map_type")


def _write_out(model: ir.Model) -> bool:
    """Scan as Loop, loops batched or unrolled, containers resolved, shapes in bodies; if changed.

    A loop that appends to a sequence may have elements of any size where it is unrolled.
    """
    loops = (scans_to_loops, hoist_loop_invariants, batch_loops, unroll_loops)
    rewrites = (*loops, resolve_containers)
    if any([rewrite(model) for rewrite in rewrites]):
        return True
    return infer_carried_shapes(model) or appending_loops_to_scans(model)


def _fold(model: ir.Model) -> None:
    """Inlines model-local functions, then folds until nothing changes."""
    common = ir.passes.common
    common.InlinePass()(model)
    with splits_hidden(model):
        _fold_constants(model)
    # TVM reads a Constant node only when it holds a tensor.
    spell_constants_out(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _fold_constants(model: ir.Model) -> None:
    _forget_unknown_types(model)
    for count in range(FOLD_ROUNDS):
        tell(f"shapes and constants, round {count + 1}")
        folded = optimizer.fold_constants_ir(
            model,
            onnx_shape_inference=True,
            input_size_limit=FOLD_INPUT_LIMIT,
            output_size_limit=FOLD_OUTPUT_LIMIT,
            should_fold=_may_fold,
        )
        pruned = ir.passes.common.RemoveUnusedNodesPass()(model)
        is_shorter = whole_slices_to_identities(model)
        if not (folded.modified or pruned.modified or is_shorter):
            break


def _forget_unknown_types(model: ir.Model) -> None:
    """Takes away tensor types without an element type, which the inputs of a Scan's body may have.

    They are valid ONNX; onnxscript cannot write them.
    """
    for graph in model.graphs():
        values = [*graph.inputs, *(output for node in graph for output in node.outputs)]
        for value in values:
            if value.type is not None and value.dtype is None:
                value.type = None


def _may_fold(node: ir.Node) -> bool | None:
    """Whether a node of constants is computed now; None leaves the choice to onnxscript's rules.

    It would compute first and look at the size then: a few integers of a damaged model can ask for
    more than there is memory. ConstantOfShape, which it keeps, is folded.
    """
    if any(not isinstance(output.type, ir.TensorType | None) for output in node.outputs):
        # Sequences and optionals are resolved in ``containers``; onnxscript prints a line for each.
        return False
    if node.op_type == "Range":
        range_steps(*(value.const_value.numpy().item() for value in node.inputs))
    sizes = [known_elements(output) for output in node.outputs if output.name]
    known = [size for size in sizes if size is not None]
    if any(size > FOLD_OUTPUT_LIMIT for size in known):
        return False
    if node.op_type in _SIZED_BY_VALUES and len(known) < len(sizes):
        return False
    return True if node.op_type == "ConstantOfShape" else None
