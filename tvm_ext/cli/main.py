"""The application: the commands put together, ``--version`` and ``--debug``."""

import io
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, TextIO

import typer

from tvm_ext.cli import (
    check,
    compile,
    logs,
    passes,
    profile,
    report_bug,
    run,
    targets,
    tune,
    wafer,
    worker,
)
from tvm_ext.cli.error_group import INTERRUPTED, ErrorGroup, discard_stdout, remember_interrupts

app = typer.Typer(
    name="tvm-ext",
    cls=ErrorGroup,
    help="From a trained ONNX model to a checked, explained, fast program with Apache TVM.",
    epilog="Exit codes: 0 success, 1 a check differs, 2 bad usage or input, 3 a defect of tvm-ext.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile", epilog=compile.EXAMPLE)(compile.compile_command)
app.command("run", epilog=run.EXAMPLE)(run.run_command)
app.command("check", epilog=check.EXAMPLE)(check.check_command)
app.command("profile", epilog=profile.EXAMPLE)(profile.profile_command)
app.command("tune", epilog=tune.EXAMPLE)(tune.tune_command)
app.command("report-bug", epilog=report_bug.EXAMPLE)(report_bug.report_bug_command)
app.command("worker", epilog=worker.EXAMPLE)(worker.worker_command)
app.add_typer(logs.app, name="logs")
app.add_typer(passes.app, name="passes")
app.add_typer(targets.app, name="targets")
app.add_typer(wafer.app, name="wafer")


def _print_versions(wanted: bool) -> None:
    if not wanted:
        return
    for label, distribution in _VERSIONED:
        try:
            found = version(distribution)
        except PackageNotFoundError:
            found = "not installed"
        typer.echo(f"{label} {found}")
    typer.echo(f"python {platform.python_version()}")
    raise typer.Exit


_VERSIONED = (("tvm-ext", "tvm-ext"), ("tvm", "apache-tvm"), ("onnx", "onnx"))


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of tvm-ext, tvm, onnx and python.",
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show a traceback on errors; also behind a command."),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the console script."""
    _repair_streams()
    if "--debug" not in sys.argv:
        _keep_native_output_out()
    try:
        remember_interrupts()
        app(prog_name="tvm-ext")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        _flush()


def _repair_streams() -> None:
    # A caller may have closed them; Python then sets None.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    for stream in (sys.stdout, sys.stderr):
        # A terminal without Unicode gets question marks, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _keep_native_output_out() -> None:
    """Sends what C++ code writes to stderr to nowhere: TVM prints warnings about its own state."""
    try:
        kept = os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
    except OSError:  # there is no stderr
        return
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    sys.stderr = os.fdopen(kept, "w", encoding=encoding, errors="replace", buffering=1)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _flush() -> None:
    """Python's own flush at exit would print a traceback when it fails."""
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
