"""``tvm-ext tune``: finds faster schedules for a model's kernels, and keeps them."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import INTERRUPTED, options
from tvm_ext.cli.input_parsing import parse_dimension_sizes
from tvm_ext.cli.options import CompileOptions, is_saved_model
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tvm_ext.hardware.machine import MachineDescription


# Parses lengths of time.


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_PARTS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|m|s)")


def parse_duration(option: str, text: str) -> float:
    """ "1h30m", "90s" or "90" (seconds) to seconds above 0; raises InputError for other texts."""
    plain = text.strip().lower()
    whole = f"{plain}s" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain) else plain
    parts = _PARTS.findall(whole)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != whole or seconds <= 0:
        raise InputError(
            f"{option} {text!r} is not a length of time; expected for example 90s, 30m or 1h30m: "
            "use that form"
        )
    return seconds


def parse_sizes_to_tune(texts: Sequence[str]) -> dict[str, list[int]]:
    """``["N=1,8"]`` to ``{"N": [1, 8]}``; raises InputError for other forms or a repeated name."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, sizes = text.rpartition("=")
        each = [parse_dimension_sizes([f"{name}={one.strip()}"])[name] for one in sizes.split(",")]
        if name in found:
            raise InputError(
                f"--size was given twice for dimension '{name}'; expected one: join the sizes by "
                "commas"
            )
        found[name] = sorted(set(each))
    return found


EXAMPLE = "Example: tvm-ext tune model.onnx --time-budget 10m --output records"

_SEARCH = "Search"
_LIMITS = "Measuring"


def tune_command(
    model: options.Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            show_default="MODEL.records",
            help="Folder for the records. If an earlier session used it, this one continues "
            "that session.",
        ),
    ] = None,
    effort: Annotated[
        str,
        typer.Option(
            "--effort",
            rich_help_panel=_SEARCH,
            help="How thorough the search is: quick, standard or thorough.",
        ),
    ] = "standard",
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            min=1,
            rich_help_panel=_SEARCH,
            show_default="set by --effort for each kernel",
            help="Number of trials of all kernels together, including those of earlier sessions.",
        ),
    ] = None,
    time_budget: Annotated[
        str | None,
        typer.Option(
            "--time-budget",
            metavar="TIME",
            rich_help_panel=_SEARCH,
            help="Longest time of the session, such as 90s, 30m or 1h30m.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="PATTERN",
            rich_help_panel=_SEARCH,
            help="Tune only kernels whose name, hash or ONNX node matches a pattern with * and"
            " ?. Repeatable.",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            metavar="PATTERN",
            rich_help_panel=_SEARCH,
            help="Do not tune kernels that match this pattern. Repeatable.",
        ),
    ] = None,
    cost_model: Annotated[
        str | None,
        typer.Option(
            "--cost-model",
            rich_help_panel=_SEARCH,
            show_default="of the effort; analytic for GPUs",
            help="The cost model that ranks candidates: xgboost, predictor, analytic or random.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option("--seed", min=0, rich_help_panel=_SEARCH, help="Seed of all random choices."),
    ] = 0,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="TIME",
            rich_help_panel=_LIMITS,
            help="Longest time in which a candidate is built, and longest time in which it is run.",
        ),
    ] = "30s",
    memory: Annotated[
        float,
        typer.Option(
            "--memory",
            min=0.25,
            metavar="GIB",
            rich_help_panel=_LIMITS,
            help="Memory that a candidate may use, in GiB. There is no limit on a GPU of this "
            "machine.",
        ),
    ] = 8.0,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size",
            metavar="DIM=N,N",
            rich_help_panel=_LIMITS,
            show_default="1 for a batch, 224 for others",
            help="Sizes of a dynamic dimension to tune kernels for. Repeatable.",
        ),
    ] = None,
    l2: Annotated[
        str,
        typer.Option(
            "--l2",
            metavar="STATE",
            rich_help_panel=_LIMITS,
            help="State of a GPU's L2 cache before each timed call: cold (emptied) or warm.",
        ),
    ] = "cold",
    rpc_tracker: Annotated[
        str | None,
        typer.Option(
            "--rpc-tracker",
            metavar="HOST:PORT",
            rich_help_panel=_LIMITS,
            help="Measure on the servers that are registered with this tracker of TVM's RPC "
            "(see 'tvm-ext rpc-server').",
        ),
    ] = None,
    rpc_key: Annotated[
        str | None,
        typer.Option(
            "--rpc-key",
            metavar="K",
            rich_help_panel=_LIMITS,
            help="Key under which those servers are registered.",
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
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE.html",
            show_default="FOLDER/report.html",
            help="Save the report to this file, with a tuning curve for each kernel.",
        ),
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Tune the kernels of an ONNX model, and keep the records in a folder.

    'tvm-ext compile MODEL --records FOLDER' uses these records. Ctrl-C ends the
    session with exit code 130 and keeps all records. The same command continues
    the session.
    """
    if is_saved_model(model):
        raise InputError(
            f"{model} is a compiled model; expected an ONNX model: its kernels cannot be scheduled "
            "anew"
        )
    if (rpc_tracker is None) != (rpc_key is None):
        raise InputError(
            "--rpc-tracker and --rpc-key belong together; expected both or none: add the other"
        )
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
    )
    chosen.require_stated_precision()
    folder = output if output is not None else Path(f"{model.stem}.records")
    seconds = parse_duration("--timeout", timeout)
    budget = parse_duration("--time-budget", time_budget) if time_budget is not None else None
    if not model.is_file():
        raise InputError(f"there is no file {model}; expected an ONNX model: check the path")

    from tvm_ext.artifact import VersionsRecord
    from tvm_ext.cli import output as out
    from tvm_ext.cli.tune_view import TuneView
    from tvm_ext.configs.atomic_file import write_text
    from tvm_ext.configs.progress import listening
    from tvm_ext.report.tuning_figures import tuning_json
    from tvm_ext.report.tuning_page import render_tuning_html
    from tvm_ext.report.tuning_text import tuning_summary
    from tvm_ext.tune_model import tune
    from tvm_ext.tuning.runner import rpc_devices
    from tvm_ext.tuning.session_options import Limits

    page = report if report is not None else folder / "report.html"
    if report is not None:
        out.check_result_files([model], [report])
    servers = rpc_devices(rpc_tracker, rpc_key, seconds) if rpc_tracker and rpc_key else ()
    with TuneView() as view, listening(view.tell):
        progress = tune(
            model,
            chosen.machine(),
            work_dir=folder,
            trials=trials,
            time_budget=budget,
            effort=effort,
            only=only or (),
            skip=skip or (),
            seed=seed,
            cost_model_name=cost_model,
            rpc=servers,
            limits=Limits(
                build_seconds=seconds, run_seconds=seconds, memory_bytes=int(memory * 2**30)
            ),
            l2=l2,
            sizes=parse_sizes_to_tune(size or ()),
            listener=view,
            **chosen.keywords(),
        )
    facts = session_facts(chosen.machine(), effort, seed)
    versions = {name: str(v) for name, v in VersionsRecord.installed().model_dump().items()}
    if json_output:
        out.print_json({**tuning_json(progress, facts, versions), "report_file": str(page)})
    else:
        out.print_rich(tuning_summary(progress, page, _compile_arguments(chosen), model=str(model)))
    write_text(page, render_tuning_html(progress, facts, versions))
    if progress.was_interrupted:
        raise typer.Exit(INTERRUPTED)


def session_facts(machine: "MachineDescription", effort: str, seed: int) -> dict[str, str]:
    """What the report says of the circumstances."""
    from tvm_ext.hardware.cpu.host import host_cpu_name, usable_cores
    from tvm_ext.report.units import format_count

    return {
        "command": shlex.join(["tvm-ext", *sys.argv[1:]]),
        "target": machine.summary,
        "CPU": f"{host_cpu_name()}, {format_count(usable_cores(), 'core')}",
        "effort": effort,
        "seed": str(seed),
    }


def _compile_arguments(chosen: CompileOptions) -> list[str]:
    """The options that the compilation has to repeat for the records to fit."""
    words: list[str] = []
    if chosen.target is not None:
        words += ["--target", chosen.target]
    for name, sizes in chosen.input_shapes.items():
        words += ["--input-shape", f"{name}={','.join(map(str, sizes))}"]
    if chosen.opt_level is not None:
        words += ["--opt-level", chosen.opt_level]
    for name in chosen.disabled_passes:
        words += ["--disable-pass", name]
    for name, values in chosen.pass_config.items():
        for option, value in values.items():
            words += ["--pass-config", f"{name}.{option}={value}"]
    if chosen.pipeline is not None:
        words += ["--pipeline", str(chosen.pipeline)]
    if chosen.threads is not None:
        words += ["--threads", str(chosen.threads)]
    return words
