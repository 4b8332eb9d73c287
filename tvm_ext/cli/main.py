"""The application: the commands put together, ``--version`` and ``--debug``, and every failure as
one line on stderr and an exit code.
"""

import gc
import importlib
import io
import os
import platform
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from importlib.metadata import PackageNotFoundError, entry_points, version
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from tvm_ext import __version__
from tvm_ext.cli import (
    BAD_INPUT,
    INTERNAL_ERROR,
    INTERRUPTED,
    READER_GONE,
    analyze,
    bench,
    cache,
    check,
    compile,
    explain,
    export,
    generate,
    logs,
    memory,
    mlir,
    passes,
    profile,
    report_bug,
    rpc_server,
    run,
    targets,
    tune,
    wafer,
)
from tvm_ext.configs.errors import TvmExtError
from tvm_ext.distributed.mpi_environment import end_all

if TYPE_CHECKING:
    from tvm_ext.hardware.backend import Backend

# The command group that turns every failure into one line on stderr and an exit code.


_OBJECTS_UNTIL_COLLECTION = 10_000

# Typer brings a copy of click in some releases and depends on it in others: either way this is the
# base of what it raises for bad usage.
_USAGE_ERROR: type[Exception] = next(
    cls
    for cls in typer.BadParameter.__mro__
    if issubclass(cls, Exception) and cls.__name__ == "ClickException"
)

_interrupts: list[int] = []


class ErrorGroup(TyperGroup):
    """The root group: ``tvm-ext`` itself."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> NoReturn:
        """Runs the command line and exits with its code."""
        arguments = debug_first(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        with _one_line_warnings():
            try:
                code = super().main(arguments, *rest, **extra)
            except _USAGE_ERROR as error:
                _print_error(_usage_message(error))
                code = BAD_INPUT
            except (KeyboardInterrupt, typer.Abort):
                _set_timer(0)
                code = INTERRUPTED
            except OSError as error:
                # Only the group's own help gets here.
                _print_error(f"the help cannot be printed ({error.strerror}): send it elsewhere")
                code = BAD_INPUT
        if isinstance(code, int) and code:
            sys.stdout.flush()
            end_all(code)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands, those of plug-ins' backends last."""
        names = list(super().list_commands(ctx))
        return names + [one.name for one in plugin_backends() if one.name not in names]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None if there is none."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        return next((_commands(one) for one in plugin_backends() if one.name == cmd_name), None)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command that ``ctx`` names; its failures become exit codes."""
        debug = bool(ctx.params.get("debug"))
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except (typer.Exit, typer.Abort, _USAGE_ERROR):
            raise
        except BrokenPipeError:
            discard_stdout()
            raise typer.Exit(READER_GONE) from None
        # The fallback: what is not one of ours is a defect, and is reported as one.
        except Exception as error:  # noqa: BLE001
            # An interrupt inside of a pass comes back from TVM as an error of that pass.
            if _interrupts:
                _set_timer(0)
                raise typer.Exit(INTERRUPTED) from None
            raise _failed(error, debug) from None
        return result


def plugin_backends() -> "list[Backend]":
    """Backends of plug-ins with commands of their own.

    Ours are registered with the other commands below: without plug-ins nobody waits for TVM here.
    """
    if not entry_points(group="tvm_ext.backends"):
        return []
    from tvm_ext.hardware.backend import all_backends

    # A plug-in may print while it is imported; stdout belongs to the command's own result.
    with redirect_stdout(sys.stderr):
        return [one for one in all_backends() if one.commands and one.source != "built-in"]


def _commands(backend: "Backend") -> Any:
    """The command group of a backend; None, with a warning, if it cannot be loaded."""
    from tvm_ext.passes.registry import users_words

    module, _, name = backend.commands.partition(":")
    try:
        return typer.main.get_command(getattr(importlib.import_module(module), name))
    except Exception as error:  # noqa: BLE001  (a plug-in may raise anything)
        warnings.warn(
            f"the commands of backend '{backend.name}' ({backend.source}) were left out: "
            f"{users_words(error)}",
            stacklevel=2,
        )
        return None


def debug_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with ``--debug``, which may stand anywhere before ``--``, moved to the front.

    So the option belongs to the group alone and yet works behind every command.
    """
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    rest = [argument for argument in given[:end] if argument != "--debug"]
    debug = ["--debug"] if len(rest) < end else []
    return [*debug, *rest, *given[end:]]


# Python drops a KeyboardInterrupt that it raises while an object is deleted, and TVM one in some of
# its callbacks: then the program goes on as if nobody had asked it to end.
_SECONDS_UNTIL_AGAIN = 0.5


def remember_interrupts() -> None:
    """Notes each Ctrl-C, on top of the KeyboardInterrupt that Python raises for it.

    One that was dropped comes again. A signal that the caller of this process chose to ignore stays
    ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_interrupt)
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, _come_again)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    _interrupts.append(number)
    _set_timer(_SECONDS_UNTIL_AGAIN)
    signal.default_int_handler(number, frame)


def _come_again(number: int, frame: FrameType | None) -> None:
    """An interrupt that nothing handles at the moment comes again; a session of tuning notes it."""
    if isinstance(sys.exc_info()[1], KeyboardInterrupt | SystemExit):
        _set_timer(_SECONDS_UNTIL_AGAIN)
    else:
        signal.raise_signal(signal.SIGINT)


def _set_timer(seconds: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def discard_stdout() -> None:
    """Sends what is still to be written to nowhere, so that Python's own flush at exit succeeds."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _failed(error: Exception, debug: bool) -> typer.Exit:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, TvmExtError):
        _print_error(str(error))
        return typer.Exit(INTERNAL_ERROR if error.defect else BAD_INPUT)
    from tvm_ext.errors import REPORT_IT, UNEXPECTED

    hint = "" if debug else "run again with --debug to see it, and "
    _print_error(f"{UNEXPECTED}: {hint}{REPORT_IT}")
    return typer.Exit(INTERNAL_ERROR)


def _print_error(message: str) -> None:
    with suppress(OSError):  # the exit code still tells
        print(f"error: {_one_line(message)}", file=sys.stderr, flush=True)


def _one_line(message: str) -> str:
    # Names in a message come from files: an escape sequence must not reach the terminal.
    from tvm_ext.report.units import plain

    return plain(" ".join(message.split()))


def _usage_message(error: Any) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see '{context.command_path} --help'" if context is not None else message


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Warnings as one line for people, without the source line that raised them."""

    def show(message: Warning | str, *args: Any, **options: Any) -> None:
        print(f"warning: {_one_line(str(message))}", file=sys.stderr)

    with warnings.catch_warnings():
        # Only in this block, and put back by it.
        warnings.showwarning = show
        yield


app = typer.Typer(
    name="tvm-ext",
    cls=ErrorGroup,
    help="Compile trained ONNX models to fast programs with Apache TVM, check and explain them.",
    epilog="Exit codes: 0 is success, 1 a check that found a difference, 2 wrong usage or input, "
    "3 a bug of tvm-ext, 130 an interruption by Ctrl-C.",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile", epilog=compile.EXAMPLE)(compile.compile_command)
app.command("export", epilog=export.EXAMPLE)(export.export_command)
app.command("run", epilog=run.EXAMPLE)(run.run_command)
app.command("generate", epilog=generate.EXAMPLE)(generate.generate_command)
app.command("check", epilog=check.EXAMPLE)(check.check_command)
app.command("analyze", epilog=analyze.EXAMPLE)(analyze.analyze_command)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain_command)
app.command("memory", epilog=memory.EXAMPLE)(memory.memory_command)
app.command("mlir", epilog=mlir.EXAMPLE)(mlir.mlir_command)
app.command("bench", epilog=bench.EXAMPLE)(bench.bench_command)
app.command("profile", epilog=profile.EXAMPLE)(profile.profile_command)
app.command("tune", epilog=tune.EXAMPLE)(tune.tune_command)
app.command("report-bug", epilog=report_bug.EXAMPLE)(report_bug.report_bug_command)
app.command("rpc-server", epilog=rpc_server.EXAMPLE)(rpc_server.rpc_server_command)
# What the command was called before.
app.command("worker", epilog=rpc_server.EXAMPLE, hidden=True)(rpc_server.rpc_server_command)
app.add_typer(cache.app, name="cache")
app.add_typer(logs.app, name="logs")
app.add_typer(passes.app, name="passes")
app.add_typer(targets.app, name="targets")
# What our backends name as their commands; those of plug-ins come when they are asked for.
app.add_typer(wafer.app, name="wafer")


def _print_versions(wanted: bool) -> None:
    if not wanted:
        return
    typer.echo(f"tvm-ext {__version__}")
    for label, distribution in _VERSIONED:
        try:
            found = version(distribution)
        except PackageNotFoundError:
            found = "not installed"
        typer.echo(f"{label} {found}")
    typer.echo(f"python {platform.python_version()}")
    raise typer.Exit


_VERSIONED = (("tvm", "apache-tvm"), ("onnx", "onnx"))


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
        typer.Option(
            "--debug",
            help="Print a traceback with each error. The option may also follow the command.",
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the console script."""
    # Most of what imports and models leave in memory stays: it need not be looked at so often.
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)
    _repair_streams()
    if "--debug" not in sys.argv:
        _keep_native_output_out()
    try:
        remember_interrupts()
        app(prog_name="tvm-ext")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        _set_timer(0)
        _flush()
        # The process ends, and its memory with it: nothing of it need be looked through.
        gc.freeze()


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
