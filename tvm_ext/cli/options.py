"""Arguments and options that several commands share, and those of a compilation, checked and ready
for ``tvm_ext.compile``.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tvm_ext
from tvm_ext.cli.input_parsing import (
    Fill,
    parse_input_shapes,
    parse_pass_config,
    parse_shard,
    parse_specializations,
)
from tvm_ext.cli.stderr_lines import progress_line
from tvm_ext.distributed.mpi_environment import mpi_size
from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from tvm_ext.compiled_model import CompiledModel
    from tvm_ext.hardware.machine import MachineDescription
    from tvm_ext.session.decoder_model import SessionModel


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.")]
ModelOrCompiled = Annotated[
    Path, typer.Argument(metavar="MODEL", help="ONNX model, or a compiled model (.tvmx).")
]

_COMPILE = "Compilation"

# ``hardware.machine.AUTOMATIC_PRECISION``, which would import TVM for ``--help``.
_AUTOMATIC = "auto"

Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        show_default="cpu",
        rich_help_panel=_COMPILE,
        help="The machine to compile for: 'cpu' is this machine, 'tvm-ext targets list' "
        "names others, and a .toml file may describe one.",
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME=SIZES",
        rich_help_panel=_COMPILE,
        help="Sizes of an input. x=1,3,224,224 fixes all of them. x=N,3,224:640,224:640 "
        "leaves N open until the run, and two sizes within a range. Repeatable.",
    ),
]
Specialize = Annotated[
    list[str] | None,
    typer.Option(
        "--specialize",
        metavar="DIM=N,...",
        rich_help_panel=_COMPILE,
        help="Also build a program for exact sizes of dynamic dimensions; inputs of these "
        "sizes run it. Repeatable.",
    ),
]
OptLevel = Annotated[
    str | None,
    typer.Option(
        "--opt-level",
        "-O",
        show_default="O3",
        rich_help_panel=_COMPILE,
        help="Optimisation level: O0 to O3, or 0 to 3. 'tvm-ext passes list' shows the "
        "passes of each level.",
    ),
]
DisabledPasses = Annotated[
    list[str] | None,
    typer.Option(
        "--disable-pass",
        metavar="NAME",
        rich_help_panel=_COMPILE,
        help="Leave this pass out. Repeatable.",
    ),
]
PassConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-config",
        metavar="PASS.OPTION=VALUE",
        rich_help_panel=_COMPILE,
        help="Set an option of a pass. Repeatable.",
    ),
]
OwnPipeline = Annotated[
    Path | None,
    typer.Option(
        "--pipeline",
        metavar="FILE.toml",
        rich_help_panel=_COMPILE,
        help="Run the passes that this file names, in its order and with its options. "
        "Stages that the file does not name run the passes of the optimisation level.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        show_default="cores of the target",
        rich_help_panel=_COMPILE,
        help="Number of CPU threads to compile for and to run with.",
    ),
]
Devices = Annotated[
    int | None,
    typer.Option(
        "--devices",
        min=1,
        show_default="1",
        rich_help_panel=_COMPILE,
        help="Number of processes that run the model together.",
    ),
]
Shard = Annotated[
    list[str] | None,
    typer.Option(
        "--shard",
        metavar="data|tensor|auto|PATTERN=AXIS",
        show_default="auto",
        rich_help_panel=_COMPILE,
        help="With --devices, what these share: the batch, weights, what takes less modelled time, "
        "or the inputs and nodes of these names along an axis. Patterns are repeatable.",
    ),
]
Tf32 = Annotated[
    bool,
    typer.Option(
        "--tf32",
        rich_help_panel=_COMPILE,
        help="Multiply float32 values in the tensor cores of a GPU, with 10 bits of "
        "mantissa instead of 23.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="PRECISION",
        show_default="model",
        rich_help_panel=_COMPILE,
        help="How float32 products are computed. model: in float32. bfloat16: from "
        "operands rounded to bfloat16, on CPUs that can multiply it. auto: in "
        "bfloat16 where --max-error allows it. float16: in float32, from weights of "
        "matmuls that are stored as float16, on CPUs.",
    ),
]
FastMath = Annotated[
    bool,
    typer.Option(
        "--fast-math",
        rich_help_panel=_COMPILE,
        help="Allow rewrites that hold only without NaN, infinities and negative zeros.",
    ),
]
CodeGenerator = Annotated[
    str | None,
    typer.Option(
        "--codegen",
        metavar="tvm|mlir",
        show_default="tvm",
        rich_help_panel=_COMPILE,
        help="Who generates the code of kernels for a CPU. mlir: MLIR, for one thread, where "
        "it has operations for all of a kernel; needs the extra 'mlir'.",
    ),
]
MaxError = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        show_default="0.01",
        rich_help_panel=_COMPILE,
        help="With --precision auto: how far each output may differ from its float32 "
        "result, relative to the largest magnitude of that output.",
    ),
]
Samples = Annotated[
    Path | None,
    typer.Option(
        "--samples",
        metavar="FILE.npz",
        show_default="random inputs",
        rich_help_panel=_COMPILE,
        help="With --precision auto: the inputs on which errors are measured, in a file as"
        " for --inputs.",
    ),
]
MemoryLimit = Annotated[
    str | None,
    typer.Option(
        "--memory-limit",
        metavar="SIZE",
        rich_help_panel=_COMPILE,
        show_default="TVM_EXT_MEMORY_LIMIT, or 3GiB",
        help="What the values of a run may take, as 64MiB: kernel calls are reordered, and cheap "
        "values computed again, until they fit.",
    ),
]
Records = Annotated[
    list[Path] | None,
    typer.Option(
        "--records",
        metavar="FOLDER",
        rich_help_panel=_COMPILE,
        help="Schedule kernels as 'tvm-ext tune' recorded in this folder. Repeatable; the "
        "first folder that knows a kernel decides.",
    ),
]
RequireRecords = Annotated[
    bool,
    typer.Option(
        "--require-records",
        rich_help_panel=_COMPILE,
        help="Fail if a kernel has no record.",
    ),
]

InputFile = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        metavar="FILE.npz",
        help="Input arrays by name: an .npz file, or a folder of .npy files.",
    ),
]
FillWith = Annotated[
    Fill | None,
    typer.Option(
        "--fill",
        show_default="random",
        help="What to fill the inputs with when there is no file of inputs.",
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="DIM=N",
        help="Size of a dynamic dimension in inputs that are made up. Repeatable.",
    ),
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, show_default="0", help="Seed of the random inputs.")
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report", metavar="FILE", help="Save the report to this file, as .html or .json."
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Also print the names of kernels, and the rows that are hidden otherwise.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]


# The compile options of a command line, checked and ready for ``tvm_ext.compile``.


# A saved model is a ZIP archive; no ONNX file begins like one.
_SAVED_MODEL_START = b"PK\x03\x04"


@dataclass(frozen=True)
class CompileOptions:
    """How to compile; None and empty where the command line said nothing.

    Attributes
    ----------
    target, opt_level : str, optional
        As for ``tvm_ext.compile``; "cpu" and "O3" when left out.
    input_shapes, disabled_passes, pass_config, dump_ir
        As for ``tvm_ext.compile``.
    threads : int, optional
        Threads to compile for and run with, instead of one for each core of the target.
    records, require_records, tf32, pipeline, specialize, precision, fast_math, codegen, max_error,
    samples
        As for ``tvm_ext.compile``.
    """

    target: str | None = None
    input_shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    opt_level: str | None = None
    disabled_passes: tuple[str, ...] = ()
    pass_config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    threads: int | None = None
    dump_ir: Path | None = None
    records: tuple[Path, ...] = ()
    require_records: bool = False
    tf32: bool = False
    pipeline: Path | None = None
    specialize: tuple[Mapping[str, int], ...] = ()
    precision: str | None = None
    fast_math: bool = False
    codegen: str | None = None
    max_error: float | None = None
    samples: Path | None = None
    memory_limit: str | None = None
    devices: int | None = None
    shard: "str | Mapping[str, int] | None" = None

    @classmethod
    def parsed(
        cls,
        target: str | None = None,
        input_shape: Sequence[str] | None = None,
        opt_level: str | None = None,
        disable_pass: Sequence[str] | None = None,
        pass_config: Sequence[str] | None = None,
        threads: int | None = None,
        dump_ir: Path | None = None,
        records: Sequence[Path] | None = None,
        require_records: bool = False,
        tf32: bool = False,
        pipeline: Path | None = None,
        specialize: Sequence[str] | None = None,
        precision: str | None = None,
        fast_math: bool = False,
        codegen: str | None = None,
        max_error: float | None = None,
        samples: Path | None = None,
        memory_limit: str | None = None,
        devices: int | None = None,
        shard: Sequence[str] | None = None,
    ) -> "CompileOptions":
        """From the texts of the command line; raises InputError for one of another form."""
        if precision != _AUTOMATIC and (max_error is not None or samples is not None):
            raise InputError(
                "--max-error or --samples were given without --precision auto; expected them only "
                "with it: add it, or leave them out"
            )
        if shard and devices is None:
            raise InputError("--shard was given without --devices; expected both: add --devices 2")
        return cls(
            target=target,
            input_shapes=parse_input_shapes(input_shape or ()),
            opt_level=opt_level,
            disabled_passes=tuple(disable_pass or ()),
            pass_config=parse_pass_config(pass_config or ()),
            threads=threads,
            dump_ir=dump_ir,
            records=tuple(records or ()),
            require_records=require_records,
            tf32=tf32,
            pipeline=pipeline,
            specialize=parse_specializations(specialize or ()),
            precision=precision,
            fast_math=fast_math,
            codegen=codegen,
            max_error=max_error,
            samples=samples,
            memory_limit=memory_limit,
            devices=devices,
            shard=parse_shard(shard or ()),
        )

    def machine(self) -> "MachineDescription":
        """The target's description with the asked number of cores, and the asked precision where
        that is not "auto".

        Raises
        ------
        TargetError, ConfigError
            There is no such target, it is no CPU and ``threads`` was given, or it has no
            instruction for the precision.
        """
        from tvm_ext.hardware.targets import resolve_target

        machine = resolve_target(self.target if self.target is not None else "cpu")
        machine = machine if self.threads is None else machine.with_threads(self.threads)
        if self.precision in (None, _AUTOMATIC):
            return machine
        return machine.with_precision(str(self.precision))

    def require_stated_precision(self) -> None:
        """Refuses what a command does not choose itself."""
        if self.precision == _AUTOMATIC:
            raise InputError(
                "--precision auto cannot be used with this command; expected 'model', 'float16' or "
                "'bfloat16': give one of them"
            )

    def keywords(self) -> dict[str, Any]:
        """What ``compile``, ``check_model`` and ``tune`` take, besides the model and the target."""
        from tvm_ext.passes.pipeline import (
            with_code_generator,
            with_fast_math,
            with_memory_limit,
        )

        given = with_fast_math(self.pass_config) if self.fast_math else self.pass_config
        own = with_code_generator(with_memory_limit(given, self.memory_limit), self.codegen)
        return {
            "input_shapes": self.input_shapes or None,
            "opt_level": self.opt_level if self.opt_level is not None else "O3",
            "disabled_passes": self.disabled_passes,
            "pass_config": own or None,
            "pipeline": self.pipeline,
            **self._automatic(),
        }

    def _automatic(self) -> dict[str, Any]:
        if self.precision != _AUTOMATIC:
            return {}
        limits = {"max_error": self.max_error, "samples": self.samples}
        return {"precision": _AUTOMATIC, **limits}

    def compile(self, model: Path) -> "CompiledModel":
        """Compiles an ONNX file; raises as ``tvm_ext.compile``."""
        if self.dump_ir is not None:
            _check_folder(self.dump_ir)
        with progress_line():
            return tvm_ext.compile(
                model,
                self.machine(),
                dump_ir=self.dump_ir,
                records=self.records,
                require_records=self.require_records,
                tf32=self.tf32,
                specialize=self.specialize,
                **self._sharding(),
                **self.keywords(),
            )

    def _sharding(self) -> dict[str, Any]:
        if self.devices is None:
            return {}
        return {"devices": self.devices, "shard": self.shard or "auto"}

    def open(self, model: Path) -> "CompiledModel":
        """Loads a saved model, or compiles an ONNX file.

        Raises
        ------
        InputError
            The model is compiled already and compile options were given.
        TvmExtError
            As ``tvm_ext.load`` and ``tvm_ext.compile``.
        """
        if not is_saved_model(model):
            return self.compile(model)
        self.require_none(model)
        from tvm_ext.runtime import load

        loaded = load(model, threads=self.threads)
        self._require_devices(model, loaded)
        return loaded

    def _require_devices(self, path: Path, model: "CompiledModel") -> None:
        """Refuses a saved model for another number of devices."""
        sharding = model.report.sharding
        has = 1 if sharding is None else sharding.devices
        wanted = self.devices if self.devices is not None else max(has, mpi_size())
        if wanted != has:
            raise InputError(
                f"{path} is for {has} devices, and {wanted} were asked for; expected the same "
                "number: compile the ONNX model again with --devices"
            )

    def open_decoder(self, model: Path) -> "SessionModel":
        """Loads a saved model, or compiles an ONNX file for sessions that read logits.

        Raises
        ------
        InputError, TvmExtError
            As ``open``.
        """
        if is_saved_model(model):
            return self.open(model)
        from tvm_ext.api import compile_decoder

        with progress_line():
            return compile_decoder(model, self.machine(), records=self.records, **self.keywords())

    def require_none(self, model: Path) -> None:
        """Refuses options that a model compiled earlier cannot follow any more."""
        given = {
            "--target": self.target is not None,
            "--input-shape": self.input_shapes,
            "--opt-level": self.opt_level is not None,
            "--disable-pass": self.disabled_passes,
            "--pass-config": self.pass_config,
            "--records": self.records,
            "--require-records": self.require_records,
            "--tf32": self.tf32,
            "--pipeline": self.pipeline is not None,
            "--specialize": self.specialize,
            "--precision": self.precision is not None,
            "--fast-math": self.fast_math,
            "--codegen": self.codegen is not None,
            "--max-error": self.max_error is not None,
            "--samples": self.samples is not None,
            "--memory-limit": self.memory_limit is not None,
            "--shard": self.shard is not None,
        }
        names = ", ".join(name for name, present in given.items() if present)
        if names:
            raise InputError(
                f"{names} given for {model}, which is compiled already; expected an ONNX model "
                "with compile options: leave them out, or compile the ONNX model again"
            )


def require_onnx_model(path: Path) -> None:
    """Raises InputError for a compiled model, where the ONNX model is looked into."""
    if is_saved_model(path):
        raise InputError(
            f"{path} is a compiled model; expected an ONNX model: give the one that it was made of"
        )


def is_saved_model(path: Path) -> bool:
    """Whether the file is, or claims to be, one that ``tvm-ext compile --output`` wrote."""
    if path.suffix == ".tvmx":
        return True
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_SAVED_MODEL_START)) == _SAVED_MODEL_START
    except OSError:
        # Whoever reads it as an ONNX model says what is wrong with it.
        return False


def _check_folder(folder: Path) -> None:
    """Refuses before the compilation a dump folder that cannot be made or written to."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise InputError(
            f"--dump-ir {folder}: {existing} is a file; expected a folder: choose another path"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(
            f"--dump-ir {folder}: {existing} is not writable; expected a folder to write to: "
            "choose another path"
        )


def command_group(help_text: str) -> typer.Typer:
    """A group of commands, which prints its help where none is named."""
    group = typer.Typer(help=help_text)

    @group.callback(invoke_without_command=True)
    def root(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


# Those of ``tvm-ext logs``.


Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of records, as 'tvm-ext tune' writes it.")
]
OneTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        show_default="all",
        help="Take only records of this target: 'cpu' for this machine, a preset, a .toml file, "
        "or a part of the name that the tables show.",
    ),
]


# Those of ``tvm-ext wafer``.


WaferTarget = Annotated[
    str,
    typer.Option(
        "--target", "-t", help="The mesh: a preset (see 'tvm-ext targets list'), or a .toml file."
    ),
]
