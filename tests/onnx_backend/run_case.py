"""Compiles and runs one case, and says how it went."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from case_workers import CRASH, TIMEOUT
from cases import OnnxBackendCase
from onnx.backend.test.runner import Runner

import tvm_ext
from tvm_ext.errors import TvmExtError
from tvm_ext.onnx_frontend.signature import model_inputs

PASSED, RANDOM, REFUSED, WRONG, INTERNAL = (
    *("passed", "random", "refused", "wrong", "internal error"),
)
STATUSES = (PASSED, RANDOM, REFUSED, WRONG, INTERNAL, CRASH, TIMEOUT)

# Their wanted numbers come from NumPy's generator, which no other one follows: ONNX asks for the
# distribution only. Of these, types and shapes are compared.
_RANDOM_CASES = re.compile(r"test_bernoulli.*|test_training_dropout(_default)?(_mask)?")


@dataclass(frozen=True)
class OnnxBackendOutcome:
    """How a case went.

    Attributes
    ----------
    status : str
        ``passed``; ``random`` where only types and shapes can be compared; ``refused`` with an
        error of ours; ``wrong`` numbers, types or shapes without one; ``internal error`` for any
        other exception; ``crash`` of the process; ``timeout``.
    reason : str
        One line; empty where it passed.
    """

    name: str
    operator: str
    status: str
    reason: str = ""


def run_case(case: OnnxBackendCase, opt_level: str = "O0") -> OnnxBackendOutcome:
    """Every input is fed at run time, as it is; nothing becomes a constant beforehand."""
    try:
        _compile_and_compare(case, opt_level)
    except TvmExtError as error:
        return OnnxBackendOutcome(case.name, case.operator, REFUSED, _one_line(error))
    except AssertionError as error:
        return OnnxBackendOutcome(case.name, case.operator, WRONG, _one_line(error))
    except Exception as error:  # noqa: BLE001 - what it is about: none may get here
        reason = f"{type(error).__name__}: {_one_line(error)}"
        return OnnxBackendOutcome(case.name, case.operator, INTERNAL, reason)
    is_random = _RANDOM_CASES.fullmatch(case.name)
    return OnnxBackendOutcome(case.name, case.operator, RANDOM if is_random else PASSED)


def lost_case(case: OnnxBackendCase, status: str, reason: str) -> OnnxBackendOutcome:
    """The outcome of a case that its process did not survive."""
    return OnnxBackendOutcome(case.name, case.operator, status, reason)


def _compile_and_compare(case: OnnxBackendCase, opt_level: str) -> None:
    proto = case.model
    compiled = tvm_ext.compile(proto, opt_level=opt_level)
    names = [value.name for value in model_inputs(proto.graph)]
    for inputs, wanted in case.data_sets():
        found = compiled.run(dict(zip(names, inputs, strict=True)))
        outputs = [found[value.name] for value in proto.graph.output if value.name]
        if _RANDOM_CASES.fullmatch(case.name):
            wanted, outputs = ([np.zeros_like(x) for x in side] for side in (wanted, outputs))
        _require_similar(wanted, outputs, case.source.rtol, case.source.atol)


def _require_similar(wanted: list[Any], found: list[Any], rtol: float, atol: float) -> None:
    """As the runner of the ONNX project compares.

    That takes the arrays of a sequence for sequences themselves, so they are compared one by one;
    NumPy's tolerance knows no narrow types from ``ml_dtypes``: they are compared as float32.
    """
    for reference, output in zip(wanted, found, strict=True):
        if isinstance(reference, list) or reference is None:
            assert type(output) is type(reference), f"{type(output)}, not {type(reference)}"
            assert len(output or ()) == len(reference or ()), "sequences of other lengths"
            _require_similar(reference or [], output or [], rtol, atol)
            continue
        types = [getattr(value, "dtype", None) for value in (reference, output)]
        if types[0] is not None and types[0] == types[1] and types[0].kind == "V":
            reference, output = (value.astype(np.float32) for value in (reference, output))
            rtol = max(rtol, 2**-6) if types[0].name == "bfloat16" else rtol
        Runner.assert_similar_outputs([reference], [output], rtol, atol)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
