"""What each pass is worth: every optional graph pass left out in turn, on real models.

The usual program of a model and the one without a pass take turns in one process; figures are
medians of ratios, beside planned memory, calls of kernels, and bytes between them. The layouts that
LayoutPlanning could have been told are measured as well. Exit code 1 when a program without a pass
computes something else or a pass slows a model, 2 for bad usage.

    python benchmarks/passes.py a.onnx --input-shape x=1,3,224,224 --passes LayoutPlanning
    python benchmarks/passes.py --models models.toml --page docs/reference/pass-effects.md
    python benchmarks/passes.py --models models.toml --json passes.json
    python benchmarks/passes.py --read passes.json --page docs/reference/pass-effects.md
"""

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ablation import AblationSettings, ModelEffects, measure_effects, optional_passes, verdicts
from model_list import FILE_FORMAT, ModelEntry, add_model_arguments, entries_of, fixed_shapes
from pass_page import Setup, from_dict, page, to_dict, verdict_table
from rich.console import Console

from tvm_ext.artifact import VersionsRecord
from tvm_ext.configs.atomic_file import check_writable, replacing
from tvm_ext.errors import InputError, TvmExtError
from tvm_ext.hardware.cpu.host import host_description

_LOG_WIDTH = 160
# Further from the usual program than this, a program computes something else.
_TOLERANCE = 1e-3


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, or reads what was measured; the module's docstring has the exit codes."""
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        for path in (options.json, options.page):
            if path:
                check_writable(path)
        if options.read:
            setup, models = _read(options.read)
        else:
            setup, models = _measured(options)
    except TvmExtError as error:
        print(f"passes.py: error: {error}", file=sys.stderr)
        return 2
    if options.json:
        _write_json(options.json, setup, models)
    if options.page:
        # A path of one machine says nothing to readers of the page.
        said = [Path(word).name if Path(word).is_absolute() else word for word in given]
        _write(options.page, "\n".join(page(setup, models, said)).rstrip() + "\n")
    console.print(verdict_table(models))
    wrong = _wrong(models)
    for line in wrong:
        console.print(line, soft_wrap=True)
    return 1 if wrong or any(one.slower for one in verdicts(models)) else 0


def _wrong(models: Sequence[ModelEffects]) -> list[str]:
    """One line for each program whose outputs are not those of the usual one."""
    return [
        f"{model.name}, {one.name}: the outputs differ by {one.difference:.1e}, expected at most "
        f"{_TOLERANCE:.0e}: look for the cause with tvm-ext check --bisect"
        for model in models
        for one in (*model.removals, *model.layouts)
        if not one.difference <= _TOLERANCE
    ]


def _measured(options: argparse.Namespace) -> tuple[Setup, list[ModelEffects]]:
    machine = host_description()
    if not 1 <= options.threads <= machine.cores:
        raise InputError(
            f"--threads is {options.threads}; expected 1 to {machine.cores}, the cores of this "
            "machine"
        )
    if options.alternations < 1 or not options.seconds > 0:
        raise InputError(
            f"--alternations is {options.alternations} and --seconds {options.seconds}; expected "
            "more than 0 of both"
        )
    wanted = [name.strip() for name in options.passes.split(",") if name.strip()]
    optional_passes(wanted)
    entries = entries_of(options.models, fixed_shapes(options.input_shape), options.files)
    if not entries:
        raise InputError("there is nothing to measure; expected models: name an .onnx file")
    versions = VersionsRecord.installed().model_dump()
    setup = Setup(
        machine.summary.removeprefix("this machine: "),
        options.threads,
        {"tvm-ext": str(versions["tvm_ext"]), "TVM": str(versions["tvm"])},
        datetime.date.today().isoformat(),
        options.alternations,
    )
    settings = AblationSettings(
        machine.with_cores(options.threads),
        options.alternations,
        options.seconds,
        wanted,
        options.memory,
    )
    models: list[ModelEffects] = []
    for place, entry in enumerate(entries, 1):
        models.append(_of_model(entry, settings, f"model {place}/{len(entries)}"))
        if options.json:
            # A long run that ends early leaves what it has.
            _write_json(options.json, setup, models)
    return setup, models


def _of_model(entry: ModelEntry, settings: AblationSettings, where: str) -> ModelEffects:
    print(f"{where}: {entry.name}", file=sys.stderr)
    return measure_effects(entry, settings, lambda text: print(f"  {text}", file=sys.stderr))


def _read(path: Path) -> tuple[Setup, list[ModelEffects]]:
    try:
        return from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); expected what --json of this script wrote: check "
            "the path"
        ) from error


def _write_json(path: Path, setup: Setup, models: Sequence[ModelEffects]) -> None:
    data: dict[str, Any] = to_dict(setup, models)
    _write(path, json.dumps(data, indent=2) + "\n")


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def _parser() -> argparse.ArgumentParser:
    machine = host_description()
    parser = argparse.ArgumentParser(
        prog="passes.py",
        description=__doc__,
        epilog=f"{FILE_FORMAT}\npasses: {', '.join(optional_passes())}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add_model_arguments(parser)
    add("--passes", default="", metavar="LIST", help="these alone, separated by commas")
    add("--threads", type=int, default=machine.cores, help="default: all cores, %(default)s here")
    add("--alternations", type=int, default=9, help="ratios of each pair; default %(default)s")
    add("--seconds", type=float, default=1.0, help="time for each pair, without pauses")
    add(
        "--no-memory",
        dest="memory",
        action="store_false",
        help="do not plan memory behind each pass",
    )
    add("--page", type=Path, metavar="FILE.md", help="write the tables as a page")
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--read", type=Path, metavar="FILE", help="take figures from such a file, and measure none")
    return parser


if __name__ == "__main__":
    sys.exit(main())
