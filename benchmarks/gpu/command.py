"""The command line of benchmarks/cuda.py: what is measured, and the tables."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import onnx
from model_list import fixed_shapes
from peers.peer import PeerError
from rich.console import Console
from rich.table import Table

from gpu.cases import GROUPS, Case, cases
from gpu.device import Peaks, Stopwatch, measured_peaks
from gpu.programs import compiled_by_torch, largest_difference, onnx_runtime, ours
from tvm_ext.check.random_inputs import random_inputs
from tvm_ext.configs.atomic_file import check_writable, write_text
from tvm_ext.configs.nearest import nearest_hint
from tvm_ext.errors import InputError, TvmExtError
from tvm_ext.hardware.cuda.runtime_library import runtime_problem
from tvm_ext.onnx_frontend import import_model

# Of float16 and bfloat16 sums in another order.
_TOLERANCE = {"float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
_MODEL_TOLERANCE = 2e-2
_LOG_WIDTH = 160


@dataclass
class Result:
    """One line: seconds by program, reasons of those that are missing."""

    name: str
    group: str
    dtype: str = ""
    work: float = 0.0
    limit: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    difference: float | None = None
    wrong: bool = False

    @property
    def failed(self) -> bool:
        """Whether ours is missing or wrong."""
        return self.wrong or "tvm-ext" not in self.seconds


def main(description: str, arguments: Sequence[str] | None = None) -> int:
    """Measures everything that was asked for; ``description`` says what the exit codes mean."""
    options = _parser(description).parse_args(arguments)
    try:
        torch = _torch()
        groups, shapes = _groups(options), fixed_shapes(options.input_shape)
        if options.json:
            check_writable(options.json)
        watch = Stopwatch(torch, options.seconds)
        peaks = measured_peaks(torch, watch)
        results = [_kernel(torch, watch, case) for case in cases() if case.group in groups]
        results += [_model(torch, watch, path, shapes) for path in options.models]
    except TvmExtError as error:
        print(f"cuda.py: error: {error}", file=sys.stderr)
        return 2
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    console.print(_heading(peaks), soft_wrap=True)
    for group in [*GROUPS, "model"]:
        rows = [result for result in results if result.group == group]
        if rows:
            console.print(_table(group, rows, peaks))
    if options.json:
        record = {"peaks": asdict(peaks), "results": [asdict(result) for result in results]}
        write_text(options.json, json.dumps(record, indent=2) + "\n")
    return 1 if any(result.failed for result in results) else 0


def _torch() -> Any:
    """PyTorch with a device; raises InputError without either."""
    problem = runtime_problem()
    if problem:
        raise InputError(f"nothing can be measured: {problem}")
    try:
        import torch
    except ImportError as error:
        raise InputError(
            f"nothing can be measured: PyTorch cannot be imported ({error}); expected it, with "
            "CUDA: pip install torch"
        ) from error
    if not torch.cuda.is_available():
        raise InputError(
            f"nothing can be measured: PyTorch {torch.__version__} sees no CUDA device; expected a "
            "build with CUDA: pip install torch"
        )
    return torch


def _groups(options: argparse.Namespace) -> Sequence[str]:
    if options.groups is None:
        return () if options.models else GROUPS
    for name in options.groups:
        if name not in GROUPS:
            raise InputError(f"--groups names '{name}'; {nearest_hint(name, GROUPS)}")
    return list(options.groups) or GROUPS


def _kernel(torch: Any, watch: Stopwatch, case: Case) -> Result:
    print(f"{case.group}: {case.name} {case.dtype}", file=sys.stderr)
    result = Result(case.name, case.group, case.dtype, case.work, case.limit)
    torch.manual_seed(0)
    kind = getattr(torch, case.dtype)
    tensors = [torch.randn(*shape, device="cuda", dtype=kind) for shape in case.shapes]

    def theirs() -> Any:
        with torch.inference_mode():
            return case.torch(torch, *tensors)

    programs = {"PyTorch": theirs}
    names = [value.name for value in case.model.graph.input]
    try:
        own = ours(torch, case.model, dict(zip(names, tensors, strict=True)))
        result.difference = largest_difference(torch, own(), [theirs()])
        result.wrong = result.difference > _TOLERANCE[case.dtype]
        programs["tvm-ext"] = own
    except TvmExtError as error:
        result.reasons["tvm-ext"] = str(error)
    _timed(watch, programs, result)
    return result


def _model(torch: Any, watch: Stopwatch, path: Path, shapes: dict[str, list[int]]) -> Result:
    print(f"model: {path.name}", file=sys.stderr)
    result = Result(path.stem, "model")
    model = onnx.load(path)
    names = {value.name for value in model.graph.input}
    given = {name: sizes for name, sizes in shapes.items() if name in names}
    imported = import_model(model, given or None)
    arrays = random_inputs(imported.inputs, 0)
    tensors = {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
    programs = {}
    try:
        programs["tvm-ext"] = ours(torch, model, tensors)
    except TvmExtError as error:
        result.reasons["tvm-ext"] = str(error)
    others = {
        "torch.compile": lambda: compiled_by_torch(torch, model, list(tensors.values())),
        "ONNX Runtime": lambda: onnx_runtime(model, tensors),
    }
    for name, prepare in others.items():
        try:
            programs[name] = prepare()
        except PeerError as error:
            result.reasons[name] = str(error)
    if "tvm-ext" in programs and "torch.compile" in programs:
        wanted = programs["torch.compile"]()
        wanted = [wanted] if torch.is_tensor(wanted) else list(wanted)
        result.difference = largest_difference(torch, programs["tvm-ext"](), wanted)
        result.wrong = result.difference > _MODEL_TOLERANCE
    _timed(watch, programs, result)
    return result


def _timed(watch: Stopwatch, programs: dict[str, Any], result: Result) -> None:
    for name, timed in zip(programs, watch.in_turn(list(programs.values())), strict=True):
        result.seconds[name], result.started[name] = timed.seconds, timed.started


def _heading(peaks: Peaks) -> str:
    rates = ", ".join(f"{kind} {flops / 1e12:.0f} TFLOP/s" for kind, flops in peaks.flops.items())
    return (
        f"{peaks.name}, {date.today().isoformat()}. Measured peaks: copy "
        f"{peaks.copy_bytes / 1e9:.0f} GB/s, cuBLAS {rates}."
    )


def _table(group: str, rows: Sequence[Result], peaks: Peaks) -> Table:
    others = sorted({name for row in rows for name in (*row.seconds, *row.reasons)} - {"tvm-ext"})
    table = Table(title=group)
    for column in ("case", "type", "ours, us", "of peak", *(f"{name} / ours" for name in others)):
        table.add_column(column, justify="left" if column in ("case", "type") else "right")
    table.add_column("difference")
    for row in rows:
        own = row.seconds.get("tvm-ext")
        cells = [row.name, row.dtype, f"{own * 1e6:.1f}" if own else "missing", _share(row, peaks)]
        cells += [_ratio(row, name) for name in others]
        note = row.reasons.get("tvm-ext") or (
            "" if row.difference is None else f"{row.difference:.0e}"
        )
        table.add_row(*cells, f"WRONG {note}" if row.wrong else note)
    return table


def _share(row: Result, peaks: Peaks) -> str:
    own = row.seconds.get("tvm-ext")
    peak = peaks.copy_bytes if row.limit == "bytes" else peaks.flops.get(row.dtype)
    if not own or not peak or not row.work:
        return ""
    return f"{100 * row.work / own / peak:.0f} %"


def _ratio(row: Result, name: str) -> str:
    own, other = row.seconds.get("tvm-ext"), row.seconds.get(name)
    if other is None:
        return row.reasons.get(name, "")
    ratio = f"{other / own:.2f}" if own else f"{other * 1e6:.1f} us"
    # Calls that cannot be recorded include the time to start them.
    return ratio if row.started[name] == "graph" else f"{ratio} (with launches)"


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cuda.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("models", nargs="*", type=Path, metavar="MODEL.onnx")
    add("--input-shape", action="append", default=[], metavar="NAME=SIZES")
    add("--groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; default all")
    add("--seconds", type=float, default=0.5, help="device time for each program of each case")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    return parser
