"""How much resident memory a saved model takes, beside what its report says.

Each model is loaded and run in a process of its own, which has loaded and run a tiny one before, so
that Python, NumPy and TVM's runtime are there already. Then further copies of it are loaded, which
do not run. What loading the first one takes more than that is kept by the process once: while a
model is read, Python's allocator and that of the C library take memory that they do not give back,
and that later models use. The figures are what Linux says of the process in ``/proc/self/status``.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from rich.table import Table

from tvm_ext.program_call import LARGE_INPUT_BYTES, LARGE_RESULT_BYTES

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
# What ``clear_refs`` takes to begin anew with the peak.
_PEAK = "5"
_RUNS = 3
_COPIES = 4
_MIB = float(1 << 20)
# So far may what is measured be from what is said.
ALLOWED = 0.05


@dataclass(frozen=True)
class Resident:
    """What one model takes, in bytes.

    Attributes
    ----------
    name : str
        The model.
    said : dict of str to int or None
        Weights, tables of the program, buffers (the arena and the results), arrays that kernels
        allocate for themselves, and inputs with what is kept of small inputs and results, from the
        report and the shapes. None for buffers whose
        sizes other values of the run decide.
    loaded, ran, peak : int
        How much resident memory grew with loading, with loading and the runs, and at most.
    once : int
        The part of ``ran`` that stays with the process for later models.
    code : int
        The part of ``ran`` that is pages of files: the code of the model.
    """

    name: str
    said: dict[str, int | None]
    loaded: int
    ran: int
    peak: int
    once: int
    code: int

    @property
    def total_said(self) -> int | None:
        """The sum of what is said; None where the report knows no size of the buffers."""
        known = [value for value in self.said.values() if value is not None]
        return sum(known) if len(known) == len(self.said) else None

    @property
    def off(self) -> float | None:
        """How far a run without the rest is from what is said, as a share of it."""
        said = self.total_said
        rest = self.once + self.code
        return None if said is None else (self.ran - rest) / said - 1


def measured(models: Sequence[Path], threads: int = 1) -> list[Resident]:
    """Compiles the models (or takes them from the cache), and measures each in its own process."""
    # The measuring process needs neither.
    import onnx

    import tvm_ext

    found: list[Resident] = []
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder) / "tiny.tvmx"
        text = '<ir_version: 10, opset_import: ["" : 20]> tiny (float[8] x) => (float[8] y) {'
        tvm_ext.compile(onnx.parser.parse_model(text + " y = Abs(x) }")).save(tiny)
        for path in models:
            saved = Path(folder) / f"{path.stem}.tvmx"
            model = tvm_ext.compile(path)
            model.save(saved)
            nominal = model.report.nominal
            # Not read there: the report of a loaded model takes memory from then on.
            sizes = dict(nominal.sizes) if nominal is not None else {}
            options = ["--threads", str(threads), "--sizes", json.dumps(sizes)]
            command = [sys.executable, __file__, str(tiny), str(saved), *options]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            grown = json.loads(answer.stdout)
            said = _said(model, threads, sizes, grown.pop("results"))
            found.append(Resident(path.stem, said, **grown))
            saved.unlink()
    return found


def table_of(found: Sequence[Resident]) -> Table:
    """A line a model, in MiB."""
    table = Table(caption="MiB; 'off': a run without 'once' and code, beside the sum that is said")
    headings = (
        "model",
        "weights",
        "program",
        "buffers",
        "arrays",
        "inputs",
        "sum",
        "loaded",
        "run",
        "peak",
        "once",
        "code",
    )
    for heading in (*headings, "off"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for one in found:
        grown = (one.loaded, one.ran, one.peak, one.once, one.code)
        figures = (*one.said.values(), one.total_said, *grown)
        off = "-" if one.off is None else f"{one.off:+.1%}"
        sizes = ("-" if value is None else f"{value / _MIB:,.2f}" for value in figures)
        table.add_row(one.name, *sizes, off)
    return table


def _grown(tiny: Path, path: Path, threads: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """What ``Resident`` holds but for the report's figures, measured in this process."""
    import tvm_ext.runtime

    first = tvm_ext.runtime.load(tiny, threads=threads)
    first.run({"x": np.ones(8, np.float32)})
    _settle()
    _CLEAR.write_text(_PEAK, encoding="ascii")
    before = _status()
    model = _loaded(path, threads)
    _settle()
    loaded = _status()
    inputs = _inputs(model.inputs, sizes)
    results = _ran(model, inputs)
    after = _status()
    return {
        "results": sum(array.nbytes for array in results.values()),
        "loaded": loaded["VmRSS"] - before["VmRSS"],
        "ran": after["VmRSS"] - before["VmRSS"],
        "peak": after["VmHWM"] - before["VmRSS"],
        "code": after["RssFile"] - before["RssFile"],
        "once": _kept_once(path, threads, loaded["RssAnon"] - before["RssAnon"]),
    }


def _said(
    model: Any, threads: int, sizes: Mapping[str, int], results: int
) -> dict[str, int | None]:
    """The report's figures, and the bytes of inputs, with what is kept of small ones and results.

    A program copies small inputs, and keeps small results of the last run beside the next ones.
    """
    inputs = [array.nbytes for array in _inputs(model.inputs, sizes).values()]
    copied = sum(nbytes for nbytes in inputs if nbytes < LARGE_INPUT_BYTES)
    kept = results if results < LARGE_RESULT_BYTES else 0
    memory, nominal = model.report.memory, model.report.nominal
    at_sizes = nominal.memory_bytes if nominal is not None else None
    further = (threads - 1) * (memory.kernel_thread_bytes or 0)
    return {
        "weights": memory.weights_bytes,
        "program": memory.program_bytes or 0,
        "buffers": at_sizes if at_sizes is not None else memory.values_bytes,
        "arrays": (memory.kernel_bytes or 0) + further,
        "inputs": sum(inputs) + copied + kept,
    }


def _loaded(path: Path, threads: int) -> Any:
    """A saved model that has not run: what a run takes, all copies would use in turn."""
    from tvm_ext.compiled_model import CompiledModel
    from tvm_ext.runtime import load

    with mock.patch.object(CompiledModel, "warm_up", return_value=False):
        return load(path, threads=threads)


def _kept_once(path: Path, threads: int, first: int) -> int:
    """What a process keeps once of the bytes that loading took first, beside the last of copies.

    The first copies use up what is left to the allocators.
    """
    copies = []
    for _ in range(_COPIES):
        before = _status()["RssAnon"]
        copies.append(_loaded(path, threads))
        _settle()
    return max(first - (_status()["RssAnon"] - before), 0)


def _inputs(inputs: Sequence[Any], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Ones, of these sizes where the model leaves them open."""
    return {
        spec.name: np.ones(
            [size if isinstance(size, int) else sizes[size] for size in spec.shape], spec.dtype
        )
        for spec in inputs
    }


def _ran(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The results of the last of some runs; what the allocators can give back is given back."""
    results: dict[str, np.ndarray] = {}
    for _ in range(_RUNS):
        # Results that somebody has while the model runs again are memory of their own.
        results.clear()
        results = model.run(inputs)
    _settle()
    return results


def _settle() -> None:
    """Gives back what Python and the C library hold without need."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _status() -> dict[str, int]:
    """The bytes of each kind."""
    lines = (line.split() for line in _STATUS.read_text(encoding="ascii").splitlines())
    return {line[0].rstrip(":"): int(line[1]) << 10 for line in lines if line[-1] == "kB"}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tiny", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", type=json.loads, default={})
    given = parser.parse_args()
    print(json.dumps(_grown(given.tiny, given.model, given.threads, given.sizes)))
