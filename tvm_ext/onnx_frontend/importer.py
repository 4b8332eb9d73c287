"""Runs TVM's ONNX importer and keeps which node each Relax binding came from."""

import contextlib
import warnings
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import onnx
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.configs.progress import tell
from tvm_ext.errors import REPORT_IT, FormError, ModelError, TvmExtError
from tvm_ext.onnx_frontend.control_flow import CONTROL_FLOW
from tvm_ext.onnx_frontend.control_flow.convert_if import (
    UnequalRanks,
    divided,
    with_readers,
)
from tvm_ext.onnx_frontend.control_flow.functions import as_tensor, without_unused_functions
from tvm_ext.onnx_frontend.control_flow.squeeze_without_axes import with_named_axes
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.converters.arguments import (
    Size,
    generated_inputs,
    gives_sequence,
    size_inputs,
    sizes_of,
)
from tvm_ext.onnx_frontend.converters.runtime_sizes import dimensions_of
from tvm_ext.onnx_frontend.converters.shape_constraints import with_agreeing_sizes
from tvm_ext.onnx_frontend.diagnostics import NodeFailed, conversion_error, place_of
from tvm_ext.onnx_frontend.ir_edits import written_iterations
from tvm_ext.onnx_frontend.onnx_graph import names_read, operator_key, opset_of, split_key
from tvm_ext.onnx_frontend.signature import sizes_of_branches
from tvm_ext.onnx_frontend.sizes import (
    GeneratedTensor,
    SizeValues,
    computed_from_sizes,
    generated,
)
from tvm_ext.onnx_frontend.sizes.quasi_affine import shortened
from tvm_ext.onnx_frontend.sizes.scalar_rules import SizeLimits, analyzer_of, in_own_scope, within
from tvm_ext.onnx_frontend.sizes.short_forms import is_clipped, short_form
from tvm_ext.onnx_frontend.sizes.size_values import INTEGERS
from tvm_ext.onnx_frontend.tvm_compat import ONNXGraphImporter, onnx_input
from tvm_ext.onnx_frontend.weights import StoredWeights
from tvm_ext.passes.runner import BUILDER_LOCK
from tvm_ext.relay_passes import PropagateSpans
from tvm_ext.relay_passes.spans import (
    all_bindings_of,
    relax_functions,
    with_functions,
    write_origins,
)
from tvm_ext.tensor_spec import SizeRange

# Sizes whose expressions have become long, as symbolic dimensions that the run binds.
#
# A layer that slices, pads and joins makes sizes that are expressions of those before it. Over a
# few layers they grow until TVM, which compares and simplifies them at every operator, does not
# finish.


# Variables, numbers and operators of an expression that TVM compares without delay.
_MOST_PARTS = 24


class LongSizes:
    """Gives tensors short sizes, and new dimensions for long ones: one for the same expression."""

    def __init__(self) -> None:
        self._dimensions: dict[tvm_ffi.StructuralKey, tirx.Var] = {}
        self._forms: dict[tvm_ffi.StructuralKey, Size] = {}

    def shortened(self, bb: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
        """``data``, or a view of it whose sizes are short."""
        sizes = sizes_of(data)
        forms = [self._form(size) for size in sizes]
        short = [self._short(bb, size) if _is_long(size) else size for size in forms]
        if all(new is old for new, old in zip(short, sizes, strict=True)):
            return data
        # A cast would not do: TVM puts the expression back in place of the variable.
        return bb.emit(relax.op.reshape(data, relax.ShapeExpr(short)))

    def _form(self, size: Size) -> Size:
        """The short form of a size that is clipped: TVM compares all others itself."""
        if not is_clipped(size):
            return size
        key = tvm_ffi.StructuralKey(size)
        if key not in self._forms:
            self._forms[key] = short_form(size)
        form = self._forms[key]
        return size if tvm_ffi.structural_equal(form, size) else form

    def shortened_values(self, bb: relax.BlockBuilder, values: SizeValues) -> SizeValues:
        """The values with short expressions in place of long integers.

        Converters make sizes of these, and give them to kernels as they are.
        """
        if values.dtype not in INTEGERS or not any(map(_is_long, values.expressions())):
            return values
        return values.with_symbols(lambda value: self._short_value(bb, value), values.tensor)

    def _short_value(self, bb: relax.BlockBuilder, value: tirx.Expr) -> tirx.Expr:
        """A dimension is never negative: one for the part above zero, one for the part below."""
        if not _is_long(value):
            return value
        analyzer = analyzer_of(value)
        value = analyzer.simplify(value)
        if tvm_ffi.StructuralKey(value) in self._dimensions or analyzer.can_prove(value >= 0):
            return self._short(bb, value)
        zero = tirx.const(0, "int64")
        above = tirx.Select(value > zero, value, zero)
        below = tirx.Select(value < zero, -value, zero)
        return self._short(bb, above) - self._short(bb, below)

    def _short(self, bb: relax.BlockBuilder, size: tirx.Expr) -> tirx.Expr:
        size = shortened(analyzer_of(size).simplify(size))
        if not _is_long(size):
            return size
        key = tvm_ffi.StructuralKey(size)
        if key not in self._dimensions:
            computed = bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([size])))
            (self._dimensions[key],) = dimensions_of(bb, computed, ["size"])
        return self._dimensions[key]


def _is_long(size: Size) -> bool:
    """A choice, which TVM writes for windows that are rounded up, and a cast count as long.

    TVM infers types anew in some passes, and knows none for a choice inside of a size. The range
    of a cast's type it takes for a limit, and plans storage for 2^31 rows.
    """
    if isinstance(size, int):
        return False
    parts: list[object] = []
    tvm_ffi.structural_walk(size, (tvm.ir.Expr, parts.append))
    return len(parts) > _MOST_PARTS or any(
        isinstance(part, tvm.ir.Call | tirx.Cast) for part in parts
    )


# Casts to sizes that the run computes, in the form that TVM's passes expect.
#
# ConvertLayout cannot look into a cast whose value is a call: it is bound to a variable first.
#
# TVM's DecomposeOpsForInference turns ``tensor_to_shape`` into a call and a ``match_cast`` to
# sizes of its own. With the ``match_cast`` of the model behind it, each size has two names, and
# its CanonicalizeBindings replaces one by the other in some places and not in others, so that an
# operator gets operands whose sizes differ, and a result of unknown shape.


_READ = "relax.tensor_to_shape"


def with_plain_casts(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with variables as the values of casts, and shapes that they name read directly."""
    changed = {
        global_var: _with_direct_reads(_with_bound_values(func))
        for global_var, func in relax_functions(mod).items()
    }
    return with_functions(mod, changed)


def _with_bound_values(func: relax.Function) -> relax.Function:
    casts = [one for one in all_bindings_of(func) if isinstance(one, relax.MatchCast)]
    if all(isinstance(cast.value, relax.Var) and not _holds_itself(cast) for cast in casts):
        return func
    return _ValueBinder().visit_expr(func)


def _holds_itself(cast: relax.MatchCast) -> bool:
    """Whether a size is cast to a variable that it is an expression of: ``max(n, 1)`` to n.

    CanonicalizeBindings would put the expression in place of the variable, in itself as well.
    """
    shapes: list[Any] = [getattr(ty, "shape", None) for ty in (cast.ty, cast.value.ty)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    return any(
        isinstance(new, tirx.Var)
        and not new.same_as(old)
        and any(new.same_as(part) for part in tirx.analysis.undefined_vars(old))
        for new, old in zip(*(shape.values for shape in shapes), strict=True)
    )


@mutator
class _ValueBinder(PyExprMutator):
    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        is_plain = isinstance(binding.value, relax.Var)
        if is_plain and not _holds_itself(binding):
            super().visit_match_cast_(binding)
            return
        value = self.visit_expr(binding.value)
        value = value if is_plain else self.builder_.emit(value)
        if _holds_itself(binding):
            # Without sizes in between, the run compares the two.
            ty = relax.TensorType(dtype=str(binding.ty.dtype), ndim=binding.ty.ndim)
            value = self.builder_.match_cast(value, ty)
        self.builder_.emit_normalized(relax.MatchCast(binding.var, value, binding.ty))


def _with_direct_reads(func: relax.Function) -> relax.Function:
    values = relax.analysis.get_var2val(func)
    reads = {
        hash(values[cast.value])
        for cast in all_bindings_of(func)
        if isinstance(cast, relax.MatchCast) and _is_read(values.get(cast.value))
    }
    if not reads:
        return func

    def direct(call: relax.Call) -> relax.Call:
        if hash(call) not in reads:
            return call
        callee = relax.ExternFunc("vm.builtin.tensor_to_shape")
        return relax.op.call_pure_packed(callee, call.args[0], ty_args=[call.ty])

    return tvm_ffi.structural_map(func, (relax.Call, direct), order="pre")


def _is_read(value: relax.Expr | None) -> bool:
    return isinstance(value, relax.Call) and value.op == tvm.ir.Op.get(_READ)


# A kernel writes its results in the loop that adds up: of no products it writes none, so that they
# are whatever was in the memory.


_SUMS = frozenset(
    {
        "relax.matmul",
        *(f"relax.nn.conv{n}d{kind}" for n in (1, 2, 3) for kind in ("", "_transpose")),
    }
)


def with_zeros_for_empty_sums(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with zeros for matmuls and convolutions of tensors that have no elements."""
    changed = {
        global_var: _SumsOfNothing().visit_expr(func)
        for global_var, func in relax_functions(mod).items()
        if any(_is_empty_sum(getattr(one, "value", None)) for one in all_bindings_of(func))
    }
    return with_functions(mod, changed)


def _is_empty_sum(value: relax.Expr | None) -> bool:
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
        return False
    if value.op.name not in _SUMS or not isinstance(value.ty.shape, relax.ShapeExpr):
        return False
    shapes = (factor.ty.shape for factor in value.args[:2])
    sizes = (size for shape in shapes if isinstance(shape, relax.ShapeExpr) for size in shape)
    return any(isinstance(size, tirx.IntImm) and int(size) == 0 for size in sizes)


@mutator
class _SumsOfNothing(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        made = super().visit_call_(call)
        if not _is_empty_sum(made):
            return made
        return self.builder_.normalize(relax.op.zeros(made.ty.shape, str(made.ty.dtype)))


class ImportedGraph(NamedTuple):
    """A graph in Relax.

    Attributes
    ----------
    mod : tvm.IRModule
        Every binding carries the node it came from.
    largest : dict of str to int
        The largest sizes of dimensions of inputs with which every operator can run, where these
        are below what is allowed.
    some, single : frozenset of str
        Dimensions of inputs that are at least 1, or 1, see ``note_some`` and ``note_times``.
    results : dict
        Which of the sizes that broadcast is the result's, see ``note_result``.
    is_unclear : bool
        Whether there are sizes of which only the run can tell whether they agree.
    """

    mod: tvm.IRModule
    largest: dict[str, int]
    some: frozenset[str]
    single: frozenset[str]
    results: Mapping[Any, int]
    is_unclear: bool


def import_graph(
    model: onnx.ModelProto,
    label: str,
    stored: StoredWeights | None = None,
    ranges: Mapping[str, SizeRange] | None = None,
    single: Collection[str] = (),
    results: Mapping[Any, int] | None = None,
) -> ImportedGraph:
    """A prepared model as a Relax module that holds for sizes within ``ranges``.

    ``stored`` reads the weights that the model holds without values; dimensions of inputs that are
    named in ``single`` become 1; ``results`` are those of an import before this one.

    Raises
    ------
    ModelError
        A converter fails; the message names the node.
    """
    importer = _OriginImporter(model, stored or StoredWeights(), ranges or {})
    importer.limits.results = results or {}
    parts = {name: getattr(model.graph, name) for name in ("initializer", "input", "output")}
    parts["input"] = [_with_single(value, single) for value in parts["input"]]
    # The importer warns; what matters is in the error we raise. Python's filters of warnings, like
    # TVM's stack of builders, are the process's.
    with BUILDER_LOCK, warnings.catch_warnings(), within(importer.limits), in_own_scope():
        warnings.simplefilter("ignore")
        try:
            mod = importer.from_onnx(SimpleNamespace(**parts, node=()), opset_of(model, ""))
        except NodeFailed as failed:
            importer.end_blocks()
            if isinstance(failed.reason, TvmExtError):
                raise failed.reason from failed.reason.__cause__
            raise conversion_error(label, model.graph, failed) from failed.reason
        except TvmExtError:
            importer.end_blocks()
            raise
        except Exception as error:
            importer.end_blocks()
            raise ModelError(
                f"bug in tvm-ext: the graph of {label} cannot be imported, whatever its nodes are; "
                f"expected a program: {REPORT_IT}",
                defect=True,
            ) from error
    mod = write_origins(
        without_unused_functions(mod), {var: (node,) for var, node in importer.node_of.items()}
    )
    mod = with_zeros_for_empty_sums(mod)
    mod = with_plain_casts(tvm.transform.Sequential([PropagateSpans()])(mod))
    limits = importer.limits
    some, single = (importer.names_of(dims) for dims in (limits.some, limits.single))
    largest = importer.largest_sizes()
    return ImportedGraph(mod, largest, some, single, limits.found, limits.is_unclear)


def _with_single(value: onnx.ValueInfoProto, names: Collection[str]) -> onnx.ValueInfoProto:
    """An input in which dimensions of these names are 1."""
    changed = onnx.ValueInfoProto()
    changed.CopyFrom(value)
    for dim in changed.type.tensor_type.shape.dim if names else ():
        if dim.dim_param in names:
            dim.dim_value = 1
    return changed


def _given(bb: relax.BlockBuilder, key: str, inputs: Any) -> Any:
    """The inputs with tensors for numbers, and for sizes that the converter does not take."""
    taken = range(len(inputs)) if key in CONTROL_FLOW else size_inputs(CONVERTERS.get(key))
    generated_taken = generated_inputs(CONVERTERS.get(key))

    def seen(place: int, value: Any) -> Any:
        if isinstance(value, GeneratedTensor):
            return value if place in generated_taken else value.as_tensor(bb)
        is_number = isinstance(value, SizeValues) and (value.is_known or place not in taken)
        return value.as_tensor(bb) if is_number else value

    return onnx_input(seen(place, value) for place, value in enumerate(inputs))


class _OriginImporter(ONNXGraphImporter):
    """TVM's importer, with each node's result bound to a variable that is noted down."""

    _nodes: dict[str, Any]

    def __init__(
        self, model: onnx.ModelProto, stored: StoredWeights, ranges: Mapping[str, SizeRange]
    ) -> None:
        super().__init__(shape_dict={}, dtype_dict="float32", sanitize=True)
        self.model = model
        self.stored = stored
        self.node_of: dict[relax.Var, str] = {}
        self._ranges = ranges
        self.limits = SizeLimits()
        self._dimensions: dict[tirx.Var, str] = {}
        self._long_sizes = LongSizes()

    def _parse_graph_input(self, graph: Any) -> None:
        super()._parse_graph_input(graph)
        self._dimensions = {
            size: str(size.name)
            for given in self._inputs.values()
            for size in (sizes_of(given) if isinstance(given.ty, relax.TensorType) else ())
            if isinstance(size, tirx.Var)
        }
        self.limits.named = frozenset(self._dimensions)
        self.limits.known = {
            size: self._ranges[name]
            for size, name in self._dimensions.items()
            if name in self._ranges
        }

    def sizes_of_branch(self, branch: str) -> dict[tirx.Var, tirx.Var]:
        """Sizes of inputs that this branch alone reads, and those that the model's author named
        the same: where the branch is chosen, both are equal."""
        by_name = {name: size for size, name in self._dimensions.items()}
        return {
            by_name[new]: by_name[old]
            for new, (side, old) in sizes_of_branches(self.model).items()
            if side == branch and new in by_name and old in by_name
        }

    def largest_sizes(self) -> dict[str, int]:
        """Those of dimensions of inputs, by name, that are below what their ranges allow."""
        return {
            name: self.limits.largest[size]
            for size, name in self._dimensions.items()
            if size in self.limits.largest
        }

    def names_of(self, dimensions: Collection[tirx.Var]) -> frozenset[str]:
        """Names of those that are dimensions of inputs."""
        return frozenset(name for size, name in self._dimensions.items() if size in dimensions)

    def end_blocks(self) -> None:
        """Ends what an error left open; TVM would print a warning of it."""
        with contextlib.suppress(tvm.error.InternalError):
            while True:
                self.bb._end_block()

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> tvm.runtime.Tensor:
        if tensor_proto.data_location != onnx.TensorProto.EXTERNAL:
            return super()._parse_array(tensor_proto)
        return tvm.runtime.tensor(self.stored.read(tensor_proto))

    def _parse_attr(self, attr_proto: Any) -> dict[str, Any]:
        """A list of no elements, which TVM's importer refuses, is as good as none."""
        lists = (onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS, onnx.AttributeProto.STRINGS)
        return super()._parse_attr(
            [a for a in attr_proto if a.type not in lists or a.floats or a.ints or a.strings]
        )

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Nothing: ``operator_support`` did it, which looks into bodies and knows domains."""

    def convert_body(self, graph: onnx.GraphProto, nodes: dict[str, Any]) -> list[Any]:
        """The outputs of a body of If or Loop whose surroundings are ``nodes``; adds its values."""
        around, self._nodes = self._nodes, nodes
        try:
            self._parse_graph_initializers(graph)
            self._construct_nodes(graph)
            return [self._nodes[value.name] for value in graph.output]
        finally:
            self._nodes = around

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        """As TVM's, which makes no functions of bodies, and refuses shapes where it could convert.

        ``from_onnx`` gets a graph without nodes: it gives up dataflow where it sees an If.
        """
        nodes = self.model.graph.node if isinstance(graph, SimpleNamespace) else graph.node
        self._convert_nodes(nodes, [value.name for value in graph.output])
        if isinstance(graph, SimpleNamespace):
            for output in graph.output:
                value = self._nodes[output.name]
                if isinstance(value, SizeValues | GeneratedTensor):
                    self._nodes[output.name] = value.as_tensor(self.bb)

    def _convert_nodes(
        self,
        nodes: Sequence[onnx.NodeProto],
        results: list[str],
        later: Sequence[onnx.NodeProto] = (),
    ) -> None:
        """Converts nodes in order; ``results`` are what their graph gives.

        ``later`` are nodes behind them that are not converted here.
        """
        for place, node in enumerate(nodes):
            tell(f"node {place + 1} of {len(nodes)}")
            named = self._with_named_axes(node)
            if named is not None:
                self._convert_nodes([*named, *nodes[place + 1 :]], results, later)
                return
            behind = [*nodes[place + 1 :], *later] if node.op_type == "If" else ()
            try:
                self._convert_node(node, behind)
            except NodeFailed as failed:
                own = isinstance(failed.reason, UnequalRanks) and failed.is_of(node.name)
                if not own or any(other in later for other in divided(behind, [node])[0]):
                    raise
                self._convert_choice(node, nodes[place + 1 :], results, failed)
                return

    def _with_named_axes(self, node: onnx.NodeProto) -> Sequence[onnx.NodeProto] | None:
        try:
            return with_named_axes(node, self._nodes.get(next(iter(node.input), "")), self.opset)
        except FormError as error:
            raise NodeFailed(place_of(node), error) from error

    def _convert_choice(
        self,
        node: onnx.NodeProto,
        behind: Sequence[onnx.NodeProto],
        results: list[str],
        failed: NodeFailed,
    ) -> None:
        """An If that must hold nodes that read its outputs, and the nodes behind it."""
        choices = [node]
        while True:
            dependent, others = divided(behind, choices)
            waiting = [o for o in others if any(n and n not in self._nodes for n in o.output)]
            try:
                self._convert_nodes(waiting, results, dependent)
                break
            except NodeFailed as other:
                # Another If, or a Squeeze written as one, whose values meet those of this one.
                met = [o for o in others if other.is_of(o.name)]
                if not isinstance(other.reason, UnequalRanks) or not met:
                    raise
                choices += met
        joined = with_readers(self, node, dependent, results)
        if joined[:1] == [node]:
            raise failed
        self._convert_nodes(joined, results)

    def _convert_node(self, node: onnx.NodeProto, behind: Sequence[onnx.NodeProto]) -> None:
        """``behind`` are the nodes that may read what an If gives."""
        attrs = self._parse_attr(node.attribute)
        attrs["tvm_custom"] = {
            "name": node.name,
            "num_outputs": len(node.output),
            "iterations": written_iterations(node),
        }
        if operator_key(node) == "If":
            read = {name for other in behind for name in names_read(other)}
            attrs["tvm_custom"]["read"] = [name in read for name in node.output]
        for name, value in zip(node.output, self._outputs(node, attrs), strict=False):
            self._nodes[name] = value

    def _outputs(self, node: onnx.NodeProto, attrs: dict) -> list[Any]:
        """The values of a node's outputs: sizes as far as they can be told before the run."""
        key = operator_key(node)
        inputs = onnx_input(self._nodes[name] if name else None for name in node.input)
        sizes = computed_from_sizes(node, inputs, self.opset) if key == node.op_type else None
        if sizes is not None and not any(value.unknown for value in sizes):
            return [self._long_sizes.shortened_values(self.bb, value) for value in sizes]
        made = generated(node, inputs) if sizes is None and key == node.op_type else None
        if made is not None:
            return [made]
        given = _given(self.bb, key, inputs)
        try:
            results = self._results(node, self._convert_operator(key, given, attrs, self.opset))
        except NodeFailed as failed:
            failed.look_at(node, given, self.model)
            raise
        if sizes is None:
            return results
        return [
            SizeValues(known.dtype, known.elements, tensor)
            for known, tensor in zip(sizes, results, strict=True)
        ]

    def _results(self, node: onnx.NodeProto, result: Any) -> list[relax.Expr]:
        """The values of a node's outputs, which may be fewer than the operator has."""
        if gives_sequence(CONVERTERS.get(operator_key(node))):
            return [result]
        if not isinstance(result, relax.Expr | list):
            return [result]
        if isinstance(result, relax.Tuple | list):
            results = list(result)
        elif isinstance(result.ty, relax.TupleType):
            items = [relax.TupleGetItem(result, i) for i in range(len(result.ty.fields))]
            results = [self._bound(node.name, self.bb.normalize(item)) for item in items]
        else:
            results = [result]
        if len(results) < len(node.output):
            reason = FormError(f"{len(results)} of its {len(node.output)} outputs are known")
            raise NodeFailed(place_of(node), reason)
        return results

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict, opset: int) -> Any:
        node = attrs["tvm_custom"]["name"]
        try:
            result = self._converted(op_name, inputs, attrs)
        except Exception as error:
            raise NodeFailed(f"{split_key(op_name)[1]} node '{node}'", error) from error
        return self._bound(node, result)

    def _converted(self, key: str, inputs: Any, attrs: dict) -> Any:
        """``key`` is an operator's name with its domain, whose opset the converter gets."""
        domain, name = split_key(key)
        opset = opset_of(self.model, domain)
        if key in CONTROL_FLOW:
            return CONTROL_FLOW[key](self, attrs["tvm_custom"]["name"], inputs, attrs)
        inputs = with_agreeing_sizes(self.bb, key, inputs, attrs)
        if key not in CONVERTERS:
            return super()._convert_operator(name, inputs, attrs, opset)
        convert = CONVERTERS[key].get_converter(opset)
        result = convert(self.bb, inputs, attrs, [self._nodes, self._params])
        return self.bb.normalize(result) if isinstance(result, relax.Expr) else result

    def _bound(self, node: str, result: Any) -> Any:
        if isinstance(result, SizeValues):
            return result
        if isinstance(result, list):
            return [self._bound(node, value) for value in result]
        if isinstance(result, relax.Tuple):
            return relax.Tuple([self._bound(node, field) for field in result.fields])
        if isinstance(result, relax.Call | relax.TupleGetItem) and isinstance(
            result.ty, relax.TensorType | relax.TupleType
        ):
            result = self.bb.emit(result)
        if isinstance(result.ty, relax.TensorType) and result.ty.ndim >= 0:
            # Converters need a size for each axis, if only one that the run defines. TVM's Slice
            # with bounds that are computed in the run gives none.
            result = self._long_sizes.shortened(self.bb, as_tensor(self.bb, result))
        if isinstance(result, relax.Var):
            self.node_of.setdefault(result, node)
        return result
