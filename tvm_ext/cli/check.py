"""``tvm-ext check``: are the numbers right, compared with ONNX Runtime?"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.input_parsing import InputSource
from tvm_ext.cli.options import CompileOptions, is_saved_model
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.errors import InputError, TvmExtError

if TYPE_CHECKING:
    from tvm_ext.check.reduce import Reduction
    from tvm_ext.check.result import CheckResult
    from tvm_ext.mlir.compare_kernels import MlirCheck

EXAMPLE = "Example: tvm-ext check model.onnx --bisect"

DIFFERS = 1

# What ``--against`` says for MLIR's code generator; a file of that name is given as ./mlir.
_MLIR = "mlir"


def check_command(
    model: options.ModelOrCompiled,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="MODEL.onnx|mlir",
            help="The ONNX model that the compiled model (.tvmx) was made from. mlir: compare the "
            "code of each kernel of an ONNX model with what MLIR generates for it.",
        ),
    ] = None,
    inputs: options.InputFile = None,
    seed: options.Seed = None,
    size: options.Sizes = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            min=0.0,
            show_default="by dtype",
            help="Largest difference that is accepted, relative to the largest magnitude of "
            "the output.",
        ),
    ] = None,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect", help="If outputs differ, name the first node whose values differ."
        ),
    ] = False,
    all_values: Annotated[
        bool,
        typer.Option("--all-values", help="Also compare every intermediate value, node by node."),
    ] = False,
    reduce: Annotated[
        Path | None,
        typer.Option(
            "--reduce",
            metavar="OUT.onnx",
            help="If the model differs, crashes or is refused, write the smallest part of it "
            "that still fails in the same way, and the inputs of that part beside it.",
        ),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            min=1.0,
            show_default="600",
            help="With --reduce: a model that takes longer to compile and run counts as hanging.",
        ),
    ] = None,
    target: options.Target = None,
    input_shape: options.InputShapes = None,
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
    json_output: options.Json = False,
) -> None:
    """Compare a model's outputs with ONNX Runtime's. The exit code is 1 when they differ.

    With --against mlir each kernel is compared with MLIR's code for it, on random arguments.
    """
    source = InputSource.parsed(inputs, seed=seed, size=size)
    chosen = CompileOptions.parsed(
        target,
        input_shape,
        opt_level,
        disable_pass,
        pass_config,
        threads,
        pipeline=pipeline,
        precision=precision,
        fast_math=fast_math,
        codegen=codegen,
        max_error=max_error,
        samples=samples,
        memory_limit=memory_limit,
    )
    more = {"--bisect": bisect, "--all-values": all_values, "--reduce": reduce is not None}
    asked = [option for option, given in more.items() if given]
    if is_saved_model(model):
        _print(_check_saved(model, chosen, source, against, rtol, asked), json_output)
        return
    if against is not None and str(against) == _MLIR:
        automatic = "precision" in chosen.keywords()
        refused = {"--rtol": rtol is not None, "--precision auto": automatic, **more}
        _require_plain_check(source, refused)
        _print(_check_against_mlir(model, chosen, source), json_output)
        return
    _require_fitting(model, against, time_limit, asked)
    keywords = {
        "target": chosen.machine(),
        "inputs": source.file,
        "seed": source.seed,
        "sizes": source.sizes,
        "rtol": rtol,
        **chosen.keywords(),
    }
    if reduce is None:
        found = _check(model, {"bisect": bisect, "all_values": all_values, **keywords})
        _print(found, json_output)
    else:
        _print_reduction(_reduce(model, reduce, time_limit, keywords), json_output)


def _require_plain_check(source: InputSource, more: Mapping[str, bool]) -> None:
    """Refuses what says something of a run of the whole model: kernels are run one by one."""
    given = {"--inputs": source.file is not None, **more}
    asked = [option for option, present in given.items() if present]
    if asked:
        raise InputError(
            f"{asked[0]} was given with --against mlir; expected it for a comparison of the whole "
            "model with ONNX Runtime: leave one of them out"
        )


def _check_against_mlir(model: Path, chosen: CompileOptions, source: InputSource) -> "MlirCheck":
    from tvm_ext.mlir import require_mlir

    require_mlir()
    from tvm_ext.mlir.compare_kernels import check_against_mlir
    from tvm_ext.mlir.model_kernels import KernelsRequest

    with progress_line():
        request = KernelsRequest(chosen.machine(), sizes=source.sizes, **chosen.keywords())
        return check_against_mlir(model, request, source.seed)


def _require_fitting(
    model: Path, against: Path | None, time_limit: float | None, asked: Sequence[str]
) -> None:
    """Refuses options that need another one, or none beside them."""
    if against is not None:
        raise InputError(
            f"--against was given for {model}, which is not a compiled model; expected it only "
            "for a .tvmx file: leave it out"
        )
    if time_limit is not None and "--reduce" not in asked:
        raise InputError(
            "--time-limit was given without --reduce; expected it only with "
            "--reduce: add --reduce, or leave it out"
        )
    if "--reduce" in asked and len(asked) > 1:
        raise InputError(
            f"{asked[0]} was given with --reduce; expected one of them: check the reduced model "
            f"with {asked[0]}"
        )


def _check(model: Path, keywords: Mapping[str, Any]) -> "CheckResult":
    from tvm_ext.check.check import check_model

    with progress_line():
        return check_model(model, **keywords)


def _reduce(
    model: Path, path: Path, time_limit: float | None, keywords: Mapping[str, Any]
) -> "Reduction":
    from tvm_ext.check.inputs import INPUT_ENDINGS
    from tvm_ext.check.reduce import TIME_LIMIT, reduce_model
    from tvm_ext.cli.output import check_result_files

    given = [file for file in (model, keywords["inputs"]) if file is not None]
    check_result_files(given, [path, *(path.with_suffix(ending) for ending in INPUT_ENDINGS)])
    with progress_line():
        return reduce_model(model, path, time_limit=time_limit or TIME_LIMIT, **keywords)


def _print(result: "CheckResult | MlirCheck", as_json: bool) -> None:
    from tvm_ext.cli import output as out

    if as_json:
        out.print_json(result.to_dict())
    else:
        out.print_rich(result.renderable())
    if not result.ok:
        raise typer.Exit(DIFFERS)


def _print_reduction(reduction: "Reduction", as_json: bool) -> None:
    """Ends as a check does, with the message of an error where that is how the model fails."""
    from tvm_ext.cli import output as out
    from tvm_ext.report.units import plain

    if as_json:
        out.print_json(reduction.to_dict())
    else:
        if reduction.result is not None:
            out.print_rich(reduction.result.renderable())
            out.print_text("")
        # Not wrapped: one of the lines is a command.
        out.print_text("\n".join(plain(line) for line in reduction.sentences()))
    failure = reduction.failure
    if failure is None:
        return
    if failure.kind == "difference":
        raise typer.Exit(DIFFERS)
    raise TvmExtError(failure.message, defect=failure.kind != "refusal")


def _check_saved(
    model: Path,
    chosen: CompileOptions,
    source: InputSource,
    against: Path | None,
    rtol: float | None,
    asked: Sequence[str],
) -> "CheckResult":
    if against is None:
        raise InputError(
            f"{model} is a compiled model; expected the ONNX model that it was made of as well: "
            "give it with --against"
        )
    if asked:
        raise InputError(
            f"{asked[0]} compiles the model again and {model} is compiled already; expected an "
            f"ONNX model: check {against} with {asked[0]}"
        )
    from tvm_ext.check.check import check_compiled

    compiled = chosen.open(model)
    with progress_line():
        return check_compiled(compiled, against, source.arrays(compiled.inputs), rtol)
