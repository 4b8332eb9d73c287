"""Compares a compiled model with ONNX Runtime on the same inputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvm_ext.api import SamplesSource, TargetSource
from tvm_ext.check.bisect import find_causes
from tvm_ext.check.inputs import inputs_for
from tvm_ext.check.intermediate_values import compare_values, find_node
from tvm_ext.check.reference import (
    ReferenceSession,
    quantises,
    reference_spreads,
    run_reference,
    saturation,
)
from tvm_ext.check.request import CheckRequest
from tvm_ext.check.result import Bisection, CheckResult
from tvm_ext.check.tolerance import WEIGHT_TOLERANCES, compare, plain_arrays, worst
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.configs.progress import tell
from tvm_ext.errors import InputError
from tvm_ext.hardware.machine import AUTOMATIC_PRECISION, MODEL_PRECISION
from tvm_ext.hosted_model import HostedModel
from tvm_ext.onnx_frontend.load import load_model
from tvm_ext.onnx_frontend.submodel import value_precision, with_types
from tvm_ext.passes.pipeline import PipelineSource


def check_model(
    source: str | Path | onnx.ModelProto,
    target: TargetSource = "cpu",
    *,
    input_shapes: Mapping[str, Sequence[int | str]] | None = None,
    opt_level: int | str = "O3",
    inputs: Mapping[str, Any] | Path | None = None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    rtol: float | None = None,
    bisect: bool = False,
    all_values: bool = False,
    disabled_passes: Iterable[str] = (),
    pass_config: Mapping[str, Mapping[str, Any]] | None = None,
    pipeline: PipelineSource | None = None,
    precision: str = MODEL_PRECISION,
    max_error: float | None = None,
    samples: SamplesSource = None,
) -> CheckResult:
    """Compiles a model, runs it, and compares its outputs with ONNX Runtime's.

    Parameters
    ----------
    source, target, input_shapes, opt_level, disabled_passes, pass_config, pipeline, precision,
    max_error, samples
        As for ``tvm_ext.compile``.
    inputs : mapping of input name to array, or path of a file of arrays, optional
        The inputs of both runs. By default they are random; ``random_inputs`` says which values
        cannot be made up.
    seed : int
        Seed of the random inputs.
    sizes : mapping of symbolic dimension to size, optional
        Sizes of the random inputs.
    rtol : float, optional
        The largest accepted difference of a floating-point output, relative to its largest
        magnitude. The default is ``max_error`` for precision "auto", and otherwise the value in
        ``tolerance.TOLERANCES`` for the precision of the output. A model that quantises values in
        the run is allowed at least twice the difference of ONNX Runtime from itself.
    bisect : bool
        Whether to look for the pass, the kernel and the node at fault if an output differs. The
        search takes ten to twenty more compilations.
    all_values : bool
        Whether intermediate values are compared too. This takes one more compilation.

    Returns
    -------
    CheckResult

    Raises
    ------
    TvmExtError
        The model cannot be compiled or run.
    ReferenceUnavailableError
        ONNX Runtime is missing or cannot run the model.
    """
    if bisect and precision == AUTOMATIC_PRECISION:
        raise InputError(
            "bisect was asked for with precision 'auto'; expected one precision for all products: "
            "use 'bfloat16'"
        )
    request = CheckRequest.of(
        source,
        target,
        disabled_passes,
        input_shapes=input_shapes,
        opt_level=opt_level,
        pass_config=pass_config,
        pipeline=pipeline,
        rtol=rtol,
        precision=precision,
        max_error=max_error,
        samples=samples,
    )
    model = request.compile()
    arrays = inputs_for(model.inputs, inputs, seed, sizes)
    reference, result = _compared(model, source, arrays, rtol)
    if all_values:
        result = replace(result, values=compare_values(request, arrays))
    if result.ok or not bisect:
        return result
    if isinstance(model, HostedModel):
        note = "the host computes steps of the model: no pass is looked for"
        other = plain_arrays(run_reference(source, arrays, optimise=False))
        spread = max(d.max_rel for d in compare(other, reference, np.inf))
        node, notes = find_node(request, arrays)
        found = Bisection(reference_spread=spread, node=node, notes=[note, *notes])
    else:
        found = find_causes(request, arrays, reference, worst(list(result.outputs)))
    return replace(result, bisection=found)


def check_request(request: CheckRequest, inputs: Mapping[str, Any] | Path) -> CheckResult:
    """As ``check_model``, without looking further."""
    model = request.compile()
    return check_compiled(model, request.source, inputs_for(model.inputs, inputs), request.rtol)


def check_compiled(
    model: CompiledModel,
    source: str | Path | onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    rtol: float | None = None,
) -> CheckResult:
    """Compares a model that was compiled before with the ONNX model that it came from.

    Parameters
    ----------
    model : CompiledModel
        From ``tvm_ext.compile`` or ``tvm_ext.load``.
    source : str, Path or onnx.ModelProto
        The ONNX model.
    inputs : mapping of input name to array
        As for ``model.run``.
    rtol : float, optional
        As for ``check_model``.

    Raises
    ------
    InputError, ModelError, TargetError, ReferenceUnavailableError
        The inputs do not fit, or one of the two cannot run.
    """
    return _compared(model, source, inputs, rtol)[1]


def _compared(
    model: CompiledModel,
    source: str | Path | onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    rtol: float | None,
) -> tuple[dict[str, np.ndarray], CheckResult]:
    tell("run")
    ours = plain_arrays(model.run(inputs))
    session = ReferenceSession(source)
    reference = plain_arrays(session.run(inputs))
    loaded = with_types(load_model(source))
    precision = dict(value_precision(loaded.graph))
    chosen = model.report.precision
    if rtol is None and chosen is not None and chosen.narrow:
        rtol = chosen.max_error
    products = model.report.target.get("products", "float32")
    if products != "float32":
        precision |= dict.fromkeys(reference, str(products))
    weights = str(model.report.target.get("stored_weights", ""))
    found = partial(compare, ours, reference, rtol, precision, stored_weights=weights)
    outputs, spreads = found(), {}
    if rtol is None and not all(output.ok for output in outputs) and quantises(loaded):
        spreads = reference_spreads(source, inputs, reference)
        outputs = found(spreads=spreads)
    result = CheckResult(
        model=model.report.model_name,
        target=str(model.report.target.get("name", "")),
        opt_level=model.report.opt_level,
        outputs=tuple(outputs),
        is_vacuous=not model.report.kernels and not model.report.host,
        reference_spread=max(spreads.values(), default=0.0),
        stored_weights=weights if rtol is None and weights in WEIGHT_TOLERANCES else "",
        saturation=saturation(source, inputs, reference) if session.has_unsigned_bytes else 0.0,
    )
    return reference, result
