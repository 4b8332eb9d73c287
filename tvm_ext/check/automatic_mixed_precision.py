"""``precision="auto"``: which products may be narrow for an error that a user states.

How much a product of bfloat16 changes the outputs is measured, not only bounded: a bound from the
largest values and slopes alone grows with every layer, and of a deep network says nothing. The
model is compiled once with a switch at each product, which rounds its operands or leaves them, so
that one program shows what each alone does, and any of them together, on samples. Rounding errors
are independent to first order: their squares add up (Higham and Mary, "A new approach to
probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019). What is not continuous,
as ArgMax and comparisons, has no such bound: products that decide it stay wide.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import tvm
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.api import SamplesSource
from tvm_ext.check.inputs import load_inputs, random_inputs
from tvm_ext.check.tolerance import compare, plain_arrays
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.configs.progress import part_of, tell
from tvm_ext.errors import InputError, PrecisionError, TargetError, own_words
from tvm_ext.hardware.targets import program_target
from tvm_ext.hosted_model import HostedModel
from tvm_ext.onnx_frontend import read_model
from tvm_ext.onnx_frontend.onnx_graph import (
    DEFAULT_DOMAINS,
    names_read,
    nodes_within,
    opset_of,
    subgraphs_of,
)
from tvm_ext.onnx_frontend.submodel import typed_model, value_types
from tvm_ext.onnx_frontend.weights import write_model
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import NodePrecision, PrecisionRecord

Samples = Sequence[Mapping[str, Any]]
Compile = Callable[..., CompiledModel]

NARROW, WIDE = "bfloat16", "float32"

DEFAULT_MAX_ERROR = 1e-2

# How much larger an error may be for inputs that no sample shows; behind a slope without a limit
# those of some inputs are far larger.
_MARGIN, _MARGIN_OF_STEEP = 4.0, 16.0

# Random inputs where no samples are given.
_RANDOM_SAMPLES = 3

_PASS = "MixedPrecision"
_OPSET_OF_BFLOAT16 = 13
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_SWITCHES = "tvm_ext_narrow_products"

# Operators whose result jumps where an operand changes by ever so little.
_JUMPS = frozenset(
    {
        *("ArgMax", "ArgMin", "TopK", "NonZero", "Unique", "NonMaxSuppression", "Hardmax"),
        *("Round", "Floor", "Ceil", "Sign", "Mod", "QuantizeLinear", "DynamicQuantizeLinear"),
        *("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsInf", "IsNaN"),
        *("Range", "ThresholdedRelu", "Shrink", "BitCast"),
    }
)
# Operators with operands whose least change is a large one of the result: none limits their slope.
_STEEP = frozenset(
    {
        *("Div", "Log", "Pow", "Reciprocal", "Sqrt", "Tan"),
        *("Acos", "Acosh", "Asin", "Atanh"),
    }
)
# Their results depend on no number of their operands.
_OF_SHAPES = frozenset({"Shape", "Size"})
_RANDOM = frozenset(
    {
        *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
        *("Bernoulli", "Multinomial"),
    }
)


def compile_within_error(compile_model: Compile, arguments: Mapping[str, Any]) -> CompiledModel:
    """Compiles a model so that its outputs differ from those of float32 by ``max_error`` at most.

    Parameters
    ----------
    compile_model : callable
        ``tvm_ext.compile``.
    arguments : mapping of name to value
        All of its arguments.

    Raises
    ------
    InputError
        ``max_error`` is no number above zero, samples do not fit the model, or there is no ONNX
        model.
    PrecisionError
        The program differs by more after all.
    TvmExtError
        As ``compile``.
    """
    left = dict(arguments)
    model, target, max_error, samples, pass_config, _ = (
        left.pop(name)
        for name in ("model", "target", "max_error", "samples", "pass_config", "precision")
    )
    max_error = DEFAULT_MAX_ERROR if max_error is None else max_error
    _check_arguments(model, max_error, left["specialize"])
    machine, input_shapes = program_target(target), left["input_shapes"]
    compile_result = partial(compile_model, **left)
    # What is compiled on the way has no records, and nobody looks at it.
    plain = {**left, "dump_ir": None, "require_records": False, "specialize": ()}
    compile_for = partial(compile_model, **plain)
    try:
        narrow_machine = machine.with_precision(NARROW)
    except TargetError:
        compiled = compile_result(model, machine, pass_config=pass_config)
        reason = f"target '{machine.name}' has no instruction for products of {NARROW}"
        compiled.report.precision = PrecisionRecord(max_error, 0.0, 0.0, 0, reason, [])
        return compiled
    with part_of(f"all in {NARROW}"):
        every = compile_for(model, narrow_machine, pass_config=pass_config)
    given = _samples(samples, every)
    with tempfile.TemporaryDirectory(prefix="tvm-ext-precision-") as folder:
        trial = _trial(model, input_shapes, every, Path(folder) / "model.onnx")
        compile_trial = partial(compile_for, target=machine, pass_config=pass_config)
        choice = _choice(trial, given, max_error, compile_trial)
    if choice.narrow == set(choice.all) and plain == left:
        compiled = every
    elif choice.narrow:
        options = dict((pass_config or {}).get(_PASS, {}))
        wide = [name for name in choice.all if name not in choice.narrow]
        config = {**(pass_config or {}), _PASS: {**options, "wide_nodes": wide}}
        compiled = compile_result(model, narrow_machine, pass_config=config)
    else:
        compiled = compile_result(model, machine, pass_config=pass_config)
    compiled.report.precision = _record(compiled, choice, given, max_error)
    return compiled


def _check_arguments(model: Any, max_error: float, specialize: Any) -> None:
    if not isinstance(max_error, int | float) or not 0 < max_error < np.inf:
        raise InputError(f"max_error is {max_error}; expected a number above 0, such as 0.01")
    if isinstance(model, tvm.IRModule):
        raise InputError(
            "precision 'auto' was asked for and the model is a module of TVM; expected an ONNX "
            "model: ask for another precision"
        )
    if specialize == "auto":
        raise InputError(
            "precision 'auto' was asked for and specialize='auto'; expected one of them: give the "
            "sizes to specialize for"
        )


def _samples(samples: SamplesSource, compiled: CompiledModel) -> list[dict[str, Any]]:
    if samples is None:
        return [random_inputs(compiled.inputs, seed) for seed in range(_RANDOM_SAMPLES)]
    if isinstance(samples, str | Path):
        return [load_inputs(Path(samples), compiled.inputs)]
    found = [samples] if isinstance(samples, Mapping) else samples
    if not isinstance(found, list | tuple) or not all(isinstance(one, Mapping) for one in found):
        raise InputError(
            f"samples is of type {type(samples).__name__}; expected a mapping of input name to "
            "array, a list of mappings, or the path of a file: pass one of these"
        )
    if not found:
        raise InputError(
            "samples is empty; expected an array for each input name: add them, or "
            "leave samples out"
        )
    known = {spec.name for spec in compiled.inputs}
    for name in {name for one in found for name in one} - known:
        raise InputError(f"samples: the model has no input '{name}'; {nearest_hint(name, known)}")
    return [dict(sample) for sample in found]


@dataclass(frozen=True)
class _Trial:
    """A model with a switch at each product that may be narrow.

    Attributes
    ----------
    path : Path
        Its file.
    candidates : list[str]
        Names of nodes, in the order of the switches.
    products : list[str]
        Names of all nodes that would be narrow.
    refusals : dict[str, str]
        Why others of these stay wide.
    margins : dict[str, float]
        By node.
    gains : dict[str, float]
        Operations of its kernel.
    """

    path: Path
    candidates: list[str]
    products: list[str]
    refusals: dict[str, str]
    margins: dict[str, float]
    gains: dict[str, float]


def _trial(
    model: Any,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    every: CompiledModel,
    path: Path,
) -> _Trial:
    places = _narrow_places(every.report)
    names: list[str] = []
    refusals: dict[str, str] = {}
    margins: dict[str, float] = {}
    candidates: list[str] = []
    if places:
        proto = _with_bfloat16(typed_model(read_model(model, input_shapes)))
        nodes = {node.name: node for node in proto.graph.node}
        named = Counter(node.name for node in proto.graph.node)
        types = value_types(proto.graph)
        jumps = _deciding(proto.graph, lambda node: _jumps_at(node, types))
        steep = _deciding(proto.graph, partial(_is_steep, producers=_producers(proto.graph)))
        has_random = any(node.op_type in _RANDOM for node in nodes_within(proto.graph))
        for place in places:
            # Other nodes are part of the product: a scale, a bias.
            products = [name for name in place if _is_product(nodes.get(name))]
            names += [name for name in products or place[:1] if name not in names]
        for name in names:
            reason = _refusal(nodes.get(name), jumps, every, has_random)
            reason = "another node has its name" if named[name] > 1 else reason
            if reason:
                refusals[name] = reason
            else:
                candidates.append(name)
                margins[name] = _MARGIN_OF_STEEP if name in steep else _MARGIN
        _insert_switches(proto, candidates)
        write_model(proto, path)
    return _Trial(path, candidates, names, refusals, margins, _gains(every.report, names))


def _with_bfloat16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in an opset whose Cast knows bfloat16.

    Raises
    ------
    PrecisionError
        ONNX's converter cannot bring it there.
    """
    opset = opset_of(model, "")
    if opset >= _OPSET_OF_BFLOAT16:
        return model
    try:
        return onnx.version_converter.convert_version(model, _OPSET_OF_BFLOAT16)
    except RuntimeError as error:
        raise PrecisionError(
            f"precision 'auto' was asked for and a model of opset {opset} that ONNX cannot convert "
            f"to {_OPSET_OF_BFLOAT16} ({own_words(error) or 'no reason given'}); expected that "
            "opset or a later one: export it again"
        ) from error


def _narrow_places(report: CompileReport) -> list[list[str]]:
    """Names of the nodes of each product that a compilation made narrow."""
    return [
        decision.where.split(" + ")
        for record in report.passes
        if record.name == _PASS
        for decision in record.decisions
        if decision.applied
    ]


def _is_product(node: onnx.NodeProto | None) -> bool:
    return node is not None and node.op_type in _PRODUCTS and node.domain in DEFAULT_DOMAINS


def _gains(report: CompileReport, names: Iterable[str]) -> dict[str, float]:
    """Operations of the kernels that compute the nodes."""
    found = dict.fromkeys(names, 1.0)
    for kernel in report.kernels:
        for origin in kernel.origins:
            for name in origin.split(" + "):
                if name in found:
                    found[name] = max(found[name], kernel.flops or 1.0)
    return found


def _refusal(
    node: onnx.NodeProto | None, jumps: Mapping[str, str], every: CompiledModel, has_random: bool
) -> str:
    """Why a product stays wide whatever its error; empty where it need not."""
    if node is None or not _is_product(node):
        return "it is no Conv, ConvTranspose, Gemm or MatMul of the model's main graph"
    if isinstance(every, HostedModel):
        return "the host computes steps of the model"
    if has_random:
        return "the model draws random numbers"
    decided = jumps.get(node.name)
    return f"{decided} jumps where its operand changes a little" if decided else ""


def _jumps_at(node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]) -> bool:
    """Whether the node, or one in a body of it, jumps at some floating-point operand."""
    if any(_jumps_at(inner, {}) for body in subgraphs_of(node) for inner in body.node):
        return True
    if any(part in node.op_type for part in ("Integer", "QLinear", "Quantize")):
        return node.op_type != "DequantizeLinear"
    if node.op_type == "MaxPool":
        return len(node.output) > 1 and bool(node.output[1])
    is_cast = node.op_type == "Cast" and _is_whole(helper.get_node_attr_value(node, "to"))
    if not is_cast and node.op_type not in _JUMPS:
        return False
    operand = types.get(node.input[0]) if node.input else None
    return operand is None or not _is_whole(operand.tensor_type.elem_type)


def _is_whole(element_type: int) -> bool:
    """Whether a type of elements is one of whole numbers or of truth values."""
    try:
        return bool(helper.tensor_dtype_to_np_dtype(element_type).kind in "biu")
    except (KeyError, TypeError):
        return False


def _producers(graph: onnx.GraphProto) -> dict[str, str]:
    """Operators by the values that they compute; "Constant" for what is stored."""
    found = {tensor.name: "Constant" for tensor in graph.initializer}
    return found | {name: node.op_type for node in graph.node for name in node.output}


def _is_steep(node: onnx.NodeProto, producers: Mapping[str, str]) -> bool:
    """Whether nothing limits the slope of a node: not of a division by what is stored, or by the
    root of a sum, as normalisations have it, nor of a power that is stored.
    """
    if node.op_type not in _STEEP:
        return False
    decided_by = [producers.get(name, "") for name in node.input]
    if node.op_type in ("Div", "Pow", "Reciprocal"):
        return decided_by[-1] not in ("Constant", "Sqrt")
    return node.op_type != "Sqrt" or decided_by != ["Add"]


def _deciding(
    graph: onnx.GraphProto, is_wanted: Callable[[onnx.NodeProto], bool]
) -> dict[str, str]:
    """Names of the nodes whose numbers reach one that is wanted, with that one in words."""
    found: dict[str, str] = {}
    reached: dict[str, str] = {}
    for node in reversed(graph.node):
        what = next((reached[name] for name in node.output if name in reached), "")
        if what:
            found[node.name] = what
        elif is_wanted(node):
            what = f"{node.op_type} '{node.name}'"
        if what and node.op_type not in _OF_SHAPES:
            reached.update((name, what) for name in names_read(node))
    return found


def _insert_switches(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Gives the model an input of truth values, each of which makes a product narrow.

    A product of rounded operands is one of the rounded data and the weights, and one of the rounded
    data and what rounding changes of the weights: the weights of both are stored.
    """
    graph = model.graph
    switches = helper.make_tensor_value_info(_SWITCHES, TensorProto.BOOL, [len(names)])
    graph.input.append(switches)
    places = {name: place for place, name in enumerate(names)}
    old = list(graph.node)
    del graph.node[:]
    for node in old:
        place = places.get(node.name)
        graph.node.extend([node] if place is None else _switched(graph, node, place))


def _switched(graph: onnx.GraphProto, node: onnx.NodeProto, place: int) -> list[onnx.NodeProto]:
    made: list[onnx.NodeProto] = []

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{_SWITCHES}/{place}/{len(made)}"
        made.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def rounded(value: str) -> str:
        return add("Cast", add("Cast", value, to=TensorProto.BFLOAT16), to=TensorProto.FLOAT)

    index = f"{_SWITCHES}/{place}/index"
    graph.initializer.append(numpy_helper.from_array(np.array(place, np.int64), index))
    nothing = f"{_SWITCHES}/{place}/nothing"
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), nothing))
    data, weights, *rest = node.input
    switch = add("Gather", _SWITCHES, index, axis=0)
    operand = add("Where", switch, rounded(data), data)
    change = add("Sub", rounded(weights), weights)
    wide, more = onnx.NodeProto(), onnx.NodeProto()
    for copy, name, inputs in (
        (wide, "wide", [operand, weights, *rest]),
        (more, "more", [operand, change]),
    ):
        copy.CopyFrom(node)
        copy.name = f"{_SWITCHES}/{place}/{name}"
        del copy.input[:], copy.output[:]
        copy.input.extend(inputs)
        copy.output.append(copy.name)
    made += [wide, more]
    # Not times zero: what is infinite would be no number.
    scaled = add("Where", switch, more.output[0], nothing)
    made.append(
        helper.make_node("Add", [wide.output[0], scaled], list(node.output), name=node.name)
    )
    return made


@dataclass
class _Choice:
    """What was chosen.

    Attributes
    ----------
    all : list[str]
        Names of the nodes that might be narrow.
    narrow : set[str]
        Those that are.
    bounds : dict[str, float]
        What each alone changes of the outputs, with the margin.
    reasons : dict[str, str]
        Why the others are wide.
    bound : float
        Of all together.
    wide_outputs : list[dict[str, Any]]
        Outputs of the samples in float32.
    """

    all: list[str]
    narrow: set[str]
    bounds: dict[str, float]
    reasons: dict[str, str]
    bound: float
    wide_outputs: list[dict[str, Any]]


def _choice(trial: _Trial, samples: Samples, max_error: float, compile_trial: Compile) -> _Choice:
    """The products to make narrow: those that save the most for what they change."""
    if not trial.candidates:
        return _Choice(trial.products, set(), {}, trial.refusals, 0.0, [])
    with part_of("with a switch at each product"):
        program = compile_trial(trial.path)

    def outputs(narrow: Iterable[str], sample: Mapping[str, Any]) -> dict[str, Any]:
        chosen = set(narrow)
        switches = np.array([name in chosen for name in trial.candidates])
        return plain_arrays(program.run({**sample, _SWITCHES: switches}))

    wide = [outputs((), sample) for sample in samples]

    def worst(narrow: Sequence[str]) -> np.ndarray:
        """The largest relative difference of each output over the samples."""
        found = [
            _differences(outputs(narrow, sample), plain)
            for sample, plain in zip(samples, wide, strict=True)
        ]
        return np.max(found, axis=0)

    changes: dict[str, np.ndarray] = {}
    for number, name in enumerate(trial.candidates):
        tell(f"product {number + 1} of {len(trial.candidates)}")
        changes[name] = trial.margins[name] * worst([name])
    taken, reasons = _within(changes, trial.gains, max_error)
    # Together they may change more than squares say, where errors depend on each other.
    while taken:
        joint = max(trial.margins[name] for name in taken) * worst(taken).max()
        bound = max(joint, _total([changes[name] for name in taken]))
        if bound <= max_error:
            break
        dropped = max(taken, key=lambda name: changes[name].max())
        taken.remove(dropped)
        reasons[dropped] = "with it the others would change too much"
    bounds = {n: float(change.max()) for n, change in changes.items() if np.isfinite(change).all()}
    bound = float(bound) if taken else 0.0
    return _Choice(trial.products, set(taken), bounds, trial.refusals | reasons, bound, wide)


def _within(
    changes: Mapping[str, np.ndarray], gains: Mapping[str, float], max_error: float
) -> tuple[list[str], dict[str, str]]:
    """Nodes whose changes together stay within the limit, and why others do not."""
    order = sorted(changes, key=lambda name: float(changes[name].max()) ** 2 / gains[name])
    taken: list[str] = []
    reasons: dict[str, str] = {}
    for name in order:
        if _total([changes[one] for one in (*taken, name)]) <= max_error:
            taken.append(name)
        elif not np.isfinite(changes[name]).all():
            reasons[name] = "with it an output has another size, or other numbers are finite"
        elif changes[name].max() > max_error:
            reasons[name] = "alone it would change more than is allowed"
        else:
            reasons[name] = "what is allowed is spent on products that save more"
    return taken, reasons


def _total(changes: Sequence[np.ndarray]) -> float:
    squares = np.sum([change**2 for change in changes], axis=0)
    return float(np.sqrt(squares).max())


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> np.ndarray:
    """Of each output: the largest difference, relative to the largest magnitude.

    Endless where sizes, integers or what is not finite differ, and where all that is wanted is
    zero.
    """
    return np.array(
        [
            one.max_rel if one.ok and (not one.max_abs or np.any(wanted[one.name])) else np.inf
            for one in compare(found, wanted, np.inf)
        ]
    )


def _record(
    compiled: CompiledModel, choice: _Choice, samples: Samples, max_error: float
) -> PrecisionRecord:
    """What the report says, with the error of the program itself; raises PrecisionError."""
    measured = 0.0
    if choice.narrow:
        for sample, wide in zip(samples, choice.wide_outputs, strict=True):
            found = plain_arrays(compiled.run(sample))
            measured = max(measured, float(_differences(found, wide).max(initial=0.0)))
    if measured > max_error:
        raise PrecisionError(
            f"{compiled.report.model_name} differs from float32 by {measured:.1e} with "
            f"{len(choice.narrow)} products of {NARROW}; expected at most {max_error:g}: give "
            "samples that are like its real inputs, or leave precision='auto' out"
        )
    nodes = [
        NodePrecision(
            name,
            NARROW if name in choice.narrow else WIDE,
            choice.reasons.get(name, ""),
            choice.bounds.get(name),
        )
        for name in choice.all
    ]
    return PrecisionRecord(max_error, choice.bound, measured, len(samples), "", nodes)
