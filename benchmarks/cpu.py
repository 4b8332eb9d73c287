"""Speed on this CPU: tvm-ext beside other programs, with the same threads, in one run.

Models as a user runs them, or single kernels (--kernels) against the machine's own peaks. All
programs take turns, so that a clock that moves hits them alike; figures are medians, and the time
that one run in a hundred exceeds. A ratio is the other program's time by ours: above 1, tvm-ext is
faster. Every answer is compared with ONNX Runtime's. Exit code 1 when one of ours is wrong or
missing, 2 for bad usage.

    python benchmarks/cpu.py a.onnx b.onnx --input-shape x=1,3,224,224 --plot ratios.png
    python benchmarks/cpu.py --kernels conv matmul_1024x1024x1024 --threads 1
    python benchmarks/cpu.py --models models.toml --roofline --json out.json
    python benchmarks/cpu.py a.onnx --busy 2
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from figures import draw, require_matplotlib
from kernel_models import GROUPS, KernelModel, Scale, kernel_models, select_kernels
from measure import Settings, busy_programs, measure_kernel, measure_model
from model_list import FILE_FORMAT, ModelEntry, add_model_arguments, entries_of, fixed_shapes
from peers import PEERS, UNFUSED, Peer
from report import Report, write_report
from results import CaseResult
from rich.console import Console
from roofline import measure_peaks
from table import kernels_table, models_table, roofline_table

from tvm_ext.configs.atomic_file import check_writable
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError, TvmExtError
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cpu.measured_peaks import copy_peak, fma_peak, large_bytes

_DEFAULT_PEERS = "onnxruntime,openvino"
_LOG_WIDTH = 200


@dataclass(frozen=True)
class _Plan:
    """What the command line asks for, checked."""

    models: list[ModelEntry]
    kernels: list[KernelModel]
    settings: Settings
    busy: int
    json: Path | None
    plot: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures everything that was asked for; the module's docstring has the exit codes."""
    # A log has no width; 80 columns, rich's own choice, are too few for the tables.
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    try:
        plan = _plan(_parser().parse_args(arguments))
        report = Report(plan.settings.machine, measure_peaks(plan.settings.machine))
        console.print(report.heading(plan.settings.peers), soft_wrap=True)
        with busy_programs(plan.busy):
            _measure(plan, report)
    except TvmExtError as error:
        print(f"cpu.py: error: {error}", file=sys.stderr)
        return 2
    _print(plan, report, console)
    if plan.plot:
        draw(report, plan.plot)
    return 1 if any(result.failed for result in report.results) else 0


def _measure(plan: _Plan, report: Report) -> None:
    """Fills the report; writes its JSON after each model, since a peer may end the process."""
    for result in _measured(plan):
        report.add(result)
        if plan.json:
            write_report(report, plan.json)
    report.peaks_after = measure_peaks(plan.settings.machine)
    if plan.json:
        write_report(report, plan.json)


def _measured(plan: _Plan) -> Iterator[CaseResult]:
    settings = plan.settings
    for position, entry in enumerate(plan.models, 1):
        print(f"model {position}/{len(plan.models)}: {entry.name}", file=sys.stderr)
        yield measure_model(entry, settings)
    if not plan.kernels:
        return
    peaks = {"flops": fma_peak(settings.machine), "bytes": copy_peak(settings.machine)}
    with tempfile.TemporaryDirectory() as folder:
        for position, kernel in enumerate(plan.kernels, 1):
            print(f"kernel {position}/{len(plan.kernels)}: {kernel.name}", file=sys.stderr)
            yield measure_kernel(kernel, peaks[kernel.limit], settings, Path(folder))


def _print(plan: _Plan, report: Report, console: Console) -> None:
    titles = {peer.name: peer.title for peer in plan.settings.peers}
    models = [result for result in report.results if not result.group]
    if models:
        console.print(models_table(models, titles))
    for result in models:
        if result.roofline:
            console.print(roofline_table(result))
    for group in GROUPS:
        kernels = [result for result in report.results if result.group == group]
        own = {UNFUSED.name: UNFUSED.title} if group == "fusion" else {}
        if kernels:
            console.print(kernels_table(group, kernels, {**own, **titles}))
    console.print(report.closing(), soft_wrap=True)


def _parser() -> argparse.ArgumentParser:
    machine = host_description()
    names = [kernel.name for kernel in kernel_models(Scale(large_bytes(machine)))]
    parser = argparse.ArgumentParser(
        prog="cpu.py",
        description=__doc__,
        epilog=f"{FILE_FORMAT}\nkernels: {', '.join(names)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_model_arguments(parser)
    add(
        "--kernels",
        nargs="*",
        metavar="NAME|GROUP",
        help=f"single kernels instead; all, or by name or group ({', '.join(GROUPS)})",
    )
    add(
        "--peers",
        default=_DEFAULT_PEERS,
        metavar="LIST",
        help=f"of {','.join(PEERS)}; default {_DEFAULT_PEERS}",
    )
    add("--threads", type=int, default=machine.cores, help="default: all cores, %(default)s here")
    add("--busy", type=int, default=0, help="so many other programs, each with a core to itself")
    add("--precision", choices=["fp32"], default="fp32", help="of all programs")
    add("--seconds", type=float, default=1.0, help="time for each program of each model")
    add(
        "--tolerance",
        type=float,
        default=1e-3,
        help="largest difference from ONNX Runtime by the largest magnitude; default %(default)s",
    )
    add("--roofline", action="store_true", help="each kernel of a model beside the machine's peaks")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--plot", type=Path, metavar="FILE.png", help="draw the figures (needs matplotlib)")
    return parser


def _plan(options: argparse.Namespace) -> _Plan:
    machine = _machine(options.threads)
    if options.busy < 0:
        raise InputError(f"--busy is {options.busy}; expected 0 or more")
    if not options.seconds > 0:
        raise InputError(f"--seconds is {options.seconds}; expected more than 0")
    kernels: list[KernelModel] = []
    if options.kernels is not None:
        kernels = select_kernels(kernel_models(Scale(large_bytes(machine))), options.kernels)
    models = entries_of(options.models, fixed_shapes(options.input_shape), options.files)
    if not models and not kernels:
        raise InputError(
            "there is nothing to measure; expected models or --kernels: name an .onnx file"
        )
    for path in (options.json, options.plot):
        if path:
            check_writable(path)
    if options.plot:
        require_matplotlib()
    settings = Settings(
        _peers(options.peers), machine, options.seconds, options.tolerance, options.roofline
    )
    return _Plan(models, kernels, settings, options.busy, options.json, options.plot)


def _machine(threads: int) -> CpuDescription:
    machine = host_description()
    if not 1 <= threads <= machine.cores:
        raise InputError(
            f"--threads is {threads}; expected 1 to {machine.cores}, the cores of this machine"
        )
    return machine.with_cores(threads)


def _peers(text: str) -> list[Peer]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise InputError(f"--peers names '{name}'; {nearest_hint(name, PEERS)}")
    return [PEERS[name] for name in dict.fromkeys(names)]


if __name__ == "__main__":
    sys.exit(main())
