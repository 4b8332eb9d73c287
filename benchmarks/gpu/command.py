"""The command line of benchmarks/cuda.py: what is measured, and where it goes."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from model_list import fixed_shapes
from rich.console import Console
from rich.table import Table

from gpu.cases import GROUPS, cases
from gpu.measuring import OURS, Bench, CudaSettings, Result
from gpu.programs import Peaks, Stopwatch, measured_peaks
from tvm_ext.artifact import VersionsRecord
from tvm_ext.configs.atomic_file import check_writable, write_text
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError, TvmExtError
from tvm_ext.hardware.cuda.host import driver_state
from tvm_ext.hardware.cuda.runtime_library import runtime_problem

# What benchmarks/cuda.py prints.


def heading(peaks: Peaks) -> str:
    """The device, the date, and what was measured of it."""
    rates = ", ".join(f"{kind} {flops / 1e12:.0f} TFLOP/s" for kind, flops in peaks.flops.items())
    return (
        f"{peaks.name}, {date.today().isoformat()}. Measured peaks: copy "
        f"{peaks.copy_bytes / 1e9:.0f} GB/s, cuBLAS {rates}."
    )


def table(group: str, rows: Sequence[Result], peaks: Peaks) -> Table:
    """Times, shares of the peaks, ratios to the others, and how far the outputs are apart."""
    names = {name for row in rows for name in (*row.seconds, *row.reasons)}
    others = sorted(names - {OURS, "comparison"})
    made = Table(title=group)
    for column in ("case", "type", "ours, us", "of peak", *(f"{name} / ours" for name in others)):
        made.add_column(column, justify="left" if column in ("case", "type") else "right")
    made.add_column("difference")
    for row in rows:
        own = row.seconds.get(OURS)
        cells = [row.name, row.dtype, f"{own * 1e6:.1f}" if own else "missing", _share(row, peaks)]
        cells += [_ratio(row, name) for name in others]
        made.add_row(*cells, _note(row))
    return made


def _note(row: Result) -> str:
    if OURS in row.reasons:
        return row.reasons[OURS]
    if row.difference is None:
        return f"not compared: {row.reasons.get('comparison', 'nothing to compare with')}"
    mark = "WRONG " if row.wrong else ""
    return f"{mark}{row.difference:.0e} ({row.compared_with})"


def _share(row: Result, peaks: Peaks) -> str:
    own = row.seconds.get(OURS)
    peak = peaks.copy_bytes if row.limit == "bytes" else peaks.flops.get(row.dtype)
    if not own or not peak or not row.work:
        return ""
    return f"{100 * row.work / own / peak:.0f} %"


def _ratio(row: Result, name: str) -> str:
    own, other = row.seconds.get(OURS), row.seconds.get(name)
    if other is None:
        return row.reasons.get(name, "")
    ratio = f"{other / own:.2f}" if own else f"{other * 1e6:.1f} us"
    # Calls that cannot be recorded include the time to start them.
    return ratio if row.started[name] == "graph" else f"{ratio} (with launches)"


_LOG_WIDTH = 160

# Those of torch.compile that leave the recording of CUDA graphs to the stopwatch.
_COMPILE_MODES = ("default", "max-autotune-no-cudagraphs")


def main(description: str, arguments: Sequence[str] | None = None) -> int:
    """Measures everything that was asked for; ``description`` says what the exit codes mean."""
    options = _parser(description).parse_args(arguments)
    settings = CudaSettings(options.tf32, options.compile_mode)
    try:
        torch = _torch(settings)
        groups, shapes = _groups(options), fixed_shapes(options.input_shape)
        if options.json:
            check_writable(options.json)
        watch = Stopwatch(torch, options.seconds)
        peaks = measured_peaks(torch, watch)
    except (TvmExtError, RuntimeError) as error:
        print(f"cuda.py: error: {error}", file=sys.stderr)
        return 2
    bench = Bench(torch, watch, settings)
    results = []
    for case in cases():
        if case.group in groups:
            print(f"{case.group}: {case.name} {case.dtype}", file=sys.stderr)
            results.append(bench.kernel(case))
    for path in options.models:
        print(f"model: {path.name}", file=sys.stderr)
        results.append(bench.model(path, shapes))
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    console.print(heading(peaks), soft_wrap=True)
    for group in [*GROUPS, "model"]:
        rows = [result for result in results if result.group == group]
        if rows:
            console.print(table(group, rows, peaks))
    if options.json:
        record = {
            "date": date.today().isoformat(),
            "versions": _versions(torch),
            "settings": asdict(settings),
            "peaks": asdict(peaks),
            "results": [asdict(result) for result in results],
        }
        write_text(options.json, json.dumps(record, indent=2) + "\n")
    return 1 if any(result.failed for result in results) else 0


def _torch(settings: CudaSettings) -> Any:
    """PyTorch with a device, set up to be compared; raises InputError without either."""
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
    # By default its convolutions are in tf32 and its products are not.
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32
    torch.backends.cudnn.allow_tf32 = settings.tf32
    # The fastest of cuDNN's kernels, not the one that it guesses.
    torch.backends.cudnn.benchmark = True
    return torch


def _versions(torch: Any) -> dict[str, str]:
    return {
        **VersionsRecord.installed().model_dump(),
        "driver": ".".join(map(str, driver_state().version)),
        "torch": str(torch.__version__),
        "torch_cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }


def _groups(options: argparse.Namespace) -> Sequence[str]:
    if options.groups is None:
        return () if options.models else GROUPS
    for name in options.groups:
        if name not in GROUPS:
            raise InputError(f"--groups names '{name}'; {nearest_hint(name, GROUPS)}")
    return list(options.groups) or GROUPS


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
    add("--tf32", action="store_true", help="float32 in tf32, for all programs")
    add("--compile-mode", choices=_COMPILE_MODES, default="default", help="of torch.compile")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    return parser
