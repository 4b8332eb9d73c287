"""Compiles and runs one damaged case, compares it with ONNX Runtime, and says how it went."""

import pickle
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from case_workers import CRASH, TIMEOUT
from cases import Case, InputsTooLargeError
from guard_pages import TVM_ALIGNMENT, UNSHARED_STORAGE, is_guarded, place_tensors

import tvm_ext
from tvm_ext.check.reference import run_reference
from tvm_ext.errors import ReferenceUnavailableError, TvmExtError

MATCH, REFUSED, UNCLEAR, TOO_LARGE = "match", "refused", "no reference", "inputs too large"
WRONG, INTERNAL, MEMORY, LINES = "wrong", "internal error", "memory", "not one line"
RAN = "ran"
STATUSES = (
    *(MATCH, REFUSED, UNCLEAR, TOO_LARGE),
    *(WRONG, INTERNAL, MEMORY, LINES, CRASH, TIMEOUT),
)
FAILURES = STATUSES[4:]

MEMORY_LIMIT = 4 << 30
# What a process takes before it compiles anything.
LIBRARIES = 300 << 20
# Of each output's largest magnitude.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Outcome:
    """How a case went.

    Attributes
    ----------
    status : str
        ``match``; ``refused`` in one line; ``no reference`` where ONNX Runtime refuses what we run;
        ``inputs too large`` to be drawn here. The rest are failures: ``wrong`` numbers, types or
        shapes; ``internal error``: an exception that is not ours; ``memory`` above the limit; ``not
        one line``; ``crash`` of the process; ``timeout``.
    reason : str
        What was said, or what differs.
    seconds, megabytes : float
        Time of the compilation and the run, peak of the process's memory.
    """

    number: int
    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    megabytes: float = 0.0


def lost_case(case: Case, status: str, reason: str) -> Outcome:
    """The outcome of a case that its process did not survive."""
    return Outcome(case.number, case.content()[1], status, reason)


def compile_case(case: Case) -> Outcome:
    """Compiles and runs; keeps what came out for ``compare_case`` where the status is ``ran``."""
    name, begun = case.write(), time.monotonic()
    _forget_peak()
    # What earlier cases left in TVM's pool is no fault of this one.
    before = max(_memory("VmRSS") - LIBRARIES, 0)
    status, reason = _outcome(case)
    seconds, peak = time.monotonic() - begun, _memory("VmHWM") - before
    if peak > MEMORY_LIMIT or any(word in reason for word in ("bad_alloc", "MemoryError")):
        status, reason = MEMORY, f"{peak >> 20} MiB: {reason}"
    if status != RAN:
        shutil.rmtree(case.model.parent)
    return Outcome(case.number, name, status, reason, round(seconds, 2), round(peak / 2**20))


def _outcome(case: Case) -> tuple[str, str]:
    try:
        inputs, outputs = _run(case)
    except InputsTooLargeError:
        return TOO_LARGE, ""
    except TvmExtError as error:
        text = str(error)
        return REFUSED if text.strip() and len(text.splitlines()) == 1 else LINES, text[:1000]
    except BaseException as error:  # noqa: BLE001 - what it is about: none may get here
        return INTERNAL, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    _kept(case).write_bytes(pickle.dumps((inputs, outputs)))
    return RAN, ""


def _run(case: Case) -> tuple[dict[Any, Any], dict[str, Any]]:
    """Inputs and outputs; with guard pages, of runs beside pages behind tensors and before them."""
    if not is_guarded():
        compiled = tvm_ext.compile(case.model, opt_level=case.opt_level)
        inputs = case.inputs(compiled)
        return inputs, compiled.run(inputs)
    place_tensors(TVM_ALIGNMENT)
    compiled = tvm_ext.compile(case.model, opt_level=case.opt_level, **UNSHARED_STORAGE)
    inputs = case.inputs(compiled)
    saved = case.model.with_name("saved.tvmx")
    compiled.save(saved)
    for alignment in (1, 0):
        place_tensors(alignment)
        outputs = tvm_ext.load(saved).run(inputs)
    return inputs, outputs


def compare_case(outcome_of_case: tuple[Case, Outcome]) -> Outcome:
    """A case that ran, after ONNX Runtime ran it too."""
    case, outcome = outcome_of_case
    inputs, outputs = pickle.loads(_kept(case).read_bytes())
    for optimise in (True, False):
        try:
            wanted = run_reference(case.model, inputs, threads=1, optimise=optimise)
        except ReferenceUnavailableError as error:
            return replace(outcome, status=UNCLEAR, reason=str(error))
        reason = _difference(wanted, outputs)
        if not reason:
            return replace(outcome, status=MATCH)
    return replace(outcome, status=WRONG, reason=reason)


def lost_reference(outcome_of_case: tuple[Case, Outcome], status: str, reason: str) -> Outcome:
    """ONNX Runtime did not survive it: no verdict."""
    return replace(outcome_of_case[1], status=UNCLEAR, reason=f"ONNX Runtime: {status}, {reason}")


def _difference(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    for name, reference in wanted.items():
        output = found.get(name)
        if output is None:
            return f"'{name}' is missing"
        if not isinstance(reference, np.ndarray):
            return f"'{name}' is a {type(reference).__name__} in ONNX Runtime"
        if output.shape != reference.shape or output.dtype != reference.dtype:
            kinds = [f"{array.dtype}{list(array.shape)}" for array in (output, reference)]
            return f"'{name}' is {kinds[0]}, in ONNX Runtime {kinds[1]}"
        far = _distance(reference, output)
        if far:
            return f"'{name}' differs: {far}"
    return ""


def _distance(reference: np.ndarray, output: np.ndarray) -> str:
    if reference.dtype.kind not in "f":
        different = int(np.count_nonzero(reference != output))
        return f"{different} of {reference.size}" if different else ""
    first, second = reference.astype(np.float64), output.astype(np.float64)
    finite = np.isfinite(first)
    if not np.array_equal(first[~finite], second[~finite], equal_nan=True):
        return "NaN or infinity"
    first, second = first[finite], second[finite]
    largest = np.max(np.abs(first), initial=0.0)
    if not np.isfinite(second).all():
        return "NaN or infinity"
    error = np.max(np.abs(first - second), initial=0.0)
    return "" if error <= TOLERANCE * largest + 1e-30 else f"by {error:.3g} of {largest:.3g}"


def _kept(case: Case) -> Path:
    return case.model.parent / "run.pickle"


def _forget_peak() -> None:
    """Has Linux count the highest memory of this process anew (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def _memory(entry: str) -> int:
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(entry))
    return int(line.split()[1]) << 10
