"""``tvm-ext run``: one run of a model, what came out, and how long it took."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.input_parsing import InputSource
from tvm_ext.cli.options import CompileOptions
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.configs.progress import tell
from tvm_ext.distributed.mpi_environment import mpi_rank

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType

    from tvm_ext.compiled_model import CompiledModel

EXAMPLE = "Example: tvm-ext run model.tvmx --inputs in.npz --outputs out.npz --repeat 20"


def run_command(
    model: options.ModelOrCompiled,
    inputs: options.InputFile = None,
    fill: options.FillWith = None,
    seed: options.Seed = None,
    size: options.Sizes = None,
    outputs: Annotated[
        Path | None,
        typer.Option(
            "--outputs",
            metavar="FILE",
            help="Save the outputs by name to this file, as .npz or .json.",
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", min=0, help="Number of further runs, which are timed.")
    ] = 0,
    print_top: Annotated[
        int, typer.Option("--print-top", min=0, help="Print the N largest values of each output.")
    ] = 0,
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
    devices: options.Devices = None,
    shard: options.Shard = None,
    records: options.Records = None,
    require_records: options.RequireRecords = False,
    json_output: options.Json = False,
) -> None:
    """Run a compiled model, or compile an ONNX model and run it."""
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
        devices=devices,
        shard=shard,
    )
    from tvm_ext.cli import output as out

    if outputs is not None:
        out.check_result_files([path for path in (model, inputs) if path is not None], [outputs])
    compiled = chosen.open(model)
    with progress_line(is_measuring=True):
        result = run_model(compiled, source.arrays(compiled.inputs), repeat)
    if mpi_rank():
        # Each process has the outputs; the first one tells of them.
        return
    if outputs is not None:
        from tvm_ext.check.inputs import write_values

        write_values(outputs, result.outputs)
    if json_output:
        saved = str(outputs) if outputs is not None else None
        out.print_json({"model": str(model), "outputs_file": saved, **result.to_dict(print_top)})
        return
    out.print_rich(*result.to_rich(print_top))
    if outputs is not None:
        out.print_text(f"Saved {outputs}")


@dataclass(frozen=True)
class RunResult:
    """What a run gave.

    Attributes
    ----------
    outputs : dict[str, Any]
        By ONNX name, as ``CompiledModel.run`` gives them.
    seconds : tuple[float, ...]
        Wall time of each timed run, conversion of inputs and outputs included.
    """

    outputs: dict[str, Any]
    seconds: tuple[float, ...]

    def to_dict(self, top: int = 0) -> dict[str, Any]:
        """JSON values."""
        from tvm_ext.check.tolerance import plain_arrays
        from tvm_ext.cli.tables import summarise

        arrays = plain_arrays(self.outputs)
        return {
            "outputs": {name: summarise(array, top) for name, array in arrays.items()},
            "timing": self._timing(),
        }

    def to_rich(self, top: int = 0) -> "list[RenderableType]":
        """A table of the outputs, and the timing in one line."""
        from tvm_ext.check.tolerance import plain_arrays
        from tvm_ext.cli.tables import summary_table
        from tvm_ext.report.units import format_count, seconds_scale

        parts: list[RenderableType] = [summary_table(plain_arrays(self.outputs), top)]
        if self.seconds:
            fastest, median = min(self.seconds), statistics.median(self.seconds)
            scale = seconds_scale(median)
            runs = format_count(len(self.seconds), "timed run")
            parts.append(f"{runs}: median {scale(median)}, fastest {scale(fastest)}")
        return parts

    def _timing(self) -> dict[str, Any] | None:
        if not self.seconds:
            return None
        return {
            "repeat": len(self.seconds),
            "median_ms": 1e3 * statistics.median(self.seconds),
            "min_ms": 1e3 * min(self.seconds),
        }


def run_model(
    compiled: "CompiledModel", inputs: "dict[str, np.ndarray]", repeat: int = 0
) -> RunResult:
    """Runs once, which also warms up, and then ``repeat`` times with a clock.

    Raises
    ------
    InputError, TargetError
        As ``CompiledModel.run``.
    """
    tell("first run")
    outputs = compiled.run(inputs)
    seconds = []
    for number in range(1, repeat + 1):
        tell(f"timed run {number} of {repeat}")
        begun = time.perf_counter()
        compiled.run(inputs)
        seconds.append(time.perf_counter() - begun)
    return RunResult(outputs, tuple(seconds))
