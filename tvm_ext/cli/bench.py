"""``tvm-ext bench``: how fast a model answers, and other programs on the same inputs."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.input_parsing import InputSource
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tvm_ext.bench import Latencies, Program

EXAMPLE = "Example: tvm-ext bench model.onnx --duration 5 --against onnxruntime,openvino"

_PERCENTILES = (50, 90, 99)


def bench_command(
    model: options.ModelOrCompiled,
    inputs: options.InputFile = None,
    fill: options.FillWith = None,
    seed: options.Seed = None,
    size: options.Sizes = None,
    duration: Annotated[
        float,
        typer.Option("--duration", metavar="SECONDS", help="How long to measure each program."),
    ] = 3.0,
    count: Annotated[
        int | None,
        typer.Option("--count", min=1, help="Number of runs to measure, instead of a duration."),
    ] = None,
    warmup: Annotated[
        float,
        typer.Option(
            "--warmup",
            metavar="SECONDS",
            min=0,
            help="How long to run before the measurement begins.",
        ),
    ] = 0.5,
    streams: Annotated[
        int,
        typer.Option(
            "--streams",
            min=1,
            help="Number of runs at the same time. They share the threads evenly.",
        ),
    ] = 1,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="LIST",
            help="Other programs that run the ONNX model, measured in turns with this one: "
            "onnxruntime, openvino.",
        ),
    ] = "",
    reference: Annotated[
        Path | None,
        typer.Option(
            "--onnx",
            metavar="MODEL",
            help="The ONNX model that --against runs when MODEL is a compiled model.",
        ),
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
    specialize: options.Specialize = None,
    opt_level: options.OptLevel = None,
    disable_pass: options.DisabledPasses = None,
    pass_config: options.PassConfig = None,
    pipeline: options.OwnPipeline = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
    fast_math: options.FastMath = False,
    codegen: options.CodeGenerator = None,
    max_error: options.MaxError = None,
    samples: options.Samples = None,
    memory_limit: options.MemoryLimit = None,
    records: options.Records = None,
    require_records: options.RequireRecords = False,
    json_output: options.Json = False,
) -> None:
    """Measure the time of runs: percentiles, throughput, first run, load time and memory."""
    source = InputSource.parsed(inputs, fill, seed, size)
    chosen = CompileOptions.parsed(
        target,
        input_shape,
        opt_level,
        disable_pass,
        pass_config,
        threads,
        records=records,
        require_records=require_records,
        pipeline=pipeline,
        specialize=specialize,
        precision=precision,
        fast_math=fast_math,
        codegen=codegen,
        max_error=max_error,
        samples=samples,
        memory_limit=memory_limit,
    )
    if not duration > 0:
        raise InputError(f"--duration is {duration}; expected more than 0 seconds")
    others = _others(against)
    onnx_model = _onnx_model(model, reference) if others else model
    from tvm_ext import bench
    from tvm_ext.cli import output as out
    from tvm_ext.hardware.cpu.system import usable_cores
    from tvm_ext.report.units import format_count

    share = max(1, (threads or usable_cores()) // streams)
    own, feed = bench.ours(
        lambda: chosen.open(model), lambda made: source.arrays(made.inputs), streams, share
    )
    with progress_line(is_measuring=True):
        more = [bench.program(name, onnx_model, feed, streams, share) for name in others]
        programs = [own, *more]
        taken = bench.measure_in_turns([one.calls for one in programs], duration, warmup, count)
    rows = [BenchRow(one, seen) for one, seen in zip(programs, taken, strict=True)]
    if json_output:
        setting = {"model": str(model), "streams": streams, "threads_of_a_stream": share}
        out.print_json({**setting, "programs": [row.to_dict() for row in rows]})
        return
    used = f"{format_count(share, 'thread')} a run, {format_count(streams, 'run')} side by side"
    out.print_rich(*bench_parts(rows, f"{model.name}, {used}"))


@dataclass(frozen=True)
class BenchRow:
    """One program and its times."""

    program: "Program"
    latencies: "Latencies"

    def to_dict(self) -> dict[str, Any]:
        """JSON values: milliseconds, runs a second and bytes."""
        seen = self.latencies
        return {
            "program": self.program.name,
            "runs": len(seen.seconds),
            **{f"p{share}_ms": 1e3 * seen.percentile(share) for share in _PERCENTILES},
            "min_ms": 1e3 * min(seen.seconds),
            "mean_ms": 1e3 * sum(seen.seconds) / len(seen.seconds),
            "runs_per_second": seen.throughput,
            "first_ms": 1e3 * seen.first_seconds,
            "load_seconds": self.program.load_seconds,
            "load_bytes": self.program.load_bytes,
        }


def _others(text: str) -> list[str]:
    from tvm_ext.bench import PROGRAMS

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PROGRAMS:
            raise InputError(f"--against names '{name}'; {nearest_hint(name, PROGRAMS)}")
    return list(dict.fromkeys(names))


def _onnx_model(model: Path, reference: Path | None) -> Path:
    if reference is not None:
        return reference
    if options.is_saved_model(model):
        raise InputError(
            f"--against was given for {model}, which is compiled; expected the ONNX model for the "
            "other programs: name it with --onnx"
        )
    return model


def bench_parts(rows: list[BenchRow], title: str) -> "list[RenderableType]":
    """The programs with their times, each compared with the first, for a terminal."""
    from rich.text import Text

    from tvm_ext.report.terminal_tables import FlexibleTable
    from tvm_ext.report.units import format_bytes, format_seconds, seconds_scale

    first = rows[0]
    percentiles = [f">p{share}" for share in _PERCENTILES]
    numbers = [*percentiles, ">Runs/s", ">First run@90", ">Loading", ">Memory"]
    numbers += [">Ratio"] if len(rows) > 1 else []
    table = FlexibleTable(title, "~Program", *numbers)
    for row in rows:
        seen = row.latencies
        times = [seen.percentile(share) for share in _PERCENTILES]
        scale = seconds_scale(max(times))
        table.add_row(
            row.program.name,
            *map(scale, times),
            f"{seen.throughput:,.4g}",
            format_seconds(seen.first_seconds),
            format_seconds(row.program.load_seconds),
            format_bytes(row.program.load_bytes),
            *[f"{seen.percentile(50) / first.latencies.percentile(50):.2f}"][: len(rows) - 1],
        )
    note = "Loading and memory: until a model can run"
    if len(rows) > 1:
        note += "; of other programs with a first run.\n"
        note += f"Ratio: p50 by that of {first.program.name}"
    return [table, Text(f"{note}.", style="dim")]
