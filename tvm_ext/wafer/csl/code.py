"""CSL source of one kernel."""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import tirx
from xdsl.backend.csl.print_csl import print_to_csl
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from tvm_ext.configs.atomic_file import OutputPathError, write_text
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription, check_limits
from tvm_ext.wafer.csl import CslError, declarations
from tvm_ext.wafer.csl.kernel import COLUMN_NUMBER, ROW_NUMBER, PeKernel, Tensor
from tvm_ext.wafer.csl.pe_program import layout, pe_program
from tvm_ext.wafer.csl.read_kernel import read_kernel

# Prints modules of the csl dialect as files of CSL, and lets nothing through half.


# The printer writes these for what it does not know, and goes on as if nothing had happened.
_UNKNOWN = re.compile(r"//\s*unknown op|<!?unknown ")
_FILE = "// FILE: "
_BETWEEN = "// -----"


def csl_source(module: Any) -> dict[str, str]:
    """The text of each file, by name with its ending.

    Raises CslError when the operations are no valid program, or when the printer does not know one
    of them: it would leave a comment in its place, and no error.

    Parameters
    ----------
    module
        A ``builtin.module`` of ``csl.module`` operations.
    """
    printed = io.StringIO()
    try:
        module.verify()
        print_to_csl(module, printed)
    except (VerifyException, ValueError, RuntimeError, AssertionError, KeyError) as error:
        reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
        raise CslError(
            f"xDSL cannot print the program: {reason}; expected operations of its csl dialect"
        ) from error
    return _files(printed.getvalue())


def _files(text: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if _UNKNOWN.search(line):
            raise CslError(
                f"xDSL's printer does not know part of the program: '{line.strip()}'; expected "
                "what its csl dialect can print"
            )
        if line.startswith(_FILE):
            name = f"{line.removeprefix(_FILE)}.csl"
            found[name] = []
        elif line != _BETWEEN:
            found[name].append(line.rstrip())
    return {file: "\n".join(lines).strip() + "\n" for file, lines in found.items()}


@dataclass(frozen=True)
class Shard:
    """How the host has to lay out one tensor.

    PE (row, column) holds, as one array, the elements from ``row * row_steps[d] + column *
    column_steps[d] + starts[d]`` on along each dimension d, ``shape[d]`` of them. Beyond the end of
    the tensor are zeros.

    Attributes
    ----------
    name : str
        Of the symbol that the program exports for the tensor.
    role : str
        "input" or "output".
    dtype : str
        Of its elements.
    tensor_shape, shape : tuple[int, ...]
        Of the tensor, and of one PE's part.
    row_steps, column_steps, starts : tuple[int, ...]
        Where a PE's part begins.
    order : tuple[int, ...]
        The dimensions from the outermost to the innermost in the PE's memory.
    row, column : int or None
        The only row, or column, of PEs that has it; None if all have their part.
    """

    name: str
    role: str
    dtype: str
    tensor_shape: tuple[int, ...]
    shape: tuple[int, ...]
    row_steps: tuple[int, ...]
    column_steps: tuple[int, ...]
    starts: tuple[int, ...]
    order: tuple[int, ...]
    row: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class CslCode:
    """The code of one kernel. No compiler of the vendor has seen it.

    Attributes
    ----------
    kernel : str
        Its name.
    rows, columns : int
        PEs that it runs on.
    files : dict[str, str]
        By name, the text: pe_program.csl, layout.csl, and collectives.csl if PEs send messages.
    shards : tuple[Shard, ...]
        Where the kernel's tensors lie.
    bytes_per_pe : int
        Of all arrays of one PE.
    module
        The same program as a ``builtin.module`` of xDSL.
    """

    kernel: str
    rows: int
    columns: int
    files: Mapping[str, str]
    shards: tuple[Shard, ...]
    bytes_per_pe: int
    module: Any

    def write(self, folder: str | Path) -> list[Path]:
        """Writes the files, into a folder that is made if needed.

        Raises OutputPathError if they cannot be written there.
        """
        target = Path(folder)
        try:
            target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputPathError(
                f"cannot make the folder {target}: {error.strerror}; expected a folder to write to"
            ) from error
        paths = [target / name for name in self.files]
        for path in paths:
            write_text(path, self.files[path.name])
        return paths


def kernel_code(func: tirx.PrimFunc, mesh: WaferDescription, name: str = "main") -> CslCode:
    """The CSL source of a kernel that is scheduled for a mesh.

    Parameters
    ----------
    func : tirx.PrimFunc
        The kernel, with the annotations of ``tir_schedules/wafer/annotations.py``: elementwise
        work, or a matmul as SUMMA, with what is computed from its result.
    mesh : WaferDescription
        The machine, for its limits.
    name : str
        What to call it in messages and comments.

    Raises
    ------
    CslError
        The kernel does something that no code is written for.
    WaferLimitError
        It takes more memory, PEs or routes than the mesh has.
    """
    try:
        kernel = read_kernel(func, name)
        program = pe_program(kernel)
    except NotApplicable as error:
        raise CslError(
            f"there is no code for kernel '{name}': {error}; expected work of each PE on its own, "
            "or with multicasts between PEs, as in SUMMA"
        ) from error
    colours = declarations.COLOURS if program.lines else 0
    check_limits(mesh, kernel.rows, kernel.columns, program.bytes, colours)
    module = ModuleOp([program.module, layout(kernel, program.lines)])
    files = csl_source(module)
    if program.lines:
        files[declarations.FILE] = declarations.collectives_source()
    heading = _heading(kernel)
    texts = {file: heading + text for file, text in files.items()}
    shards = tuple(_shard(kernel, t, symbol) for t, symbol in program.symbols.items())
    return CslCode(name, kernel.rows, kernel.columns, texts, shards, program.bytes, module)


def _heading(kernel: PeKernel) -> str:
    name = "".join(c if c.isprintable() else "?" for c in kernel.name)
    return (
        f"// Kernel {name} on {kernel.rows} rows and {kernel.columns} columns of PEs.\n"
        "// Made by tvm-ext; not compiled by the vendor's compiler.\n\n"
    )


def _shard(kernel: PeKernel, tensor: Tensor, symbol: str) -> Shard:
    tile = kernel.tiles[tensor]

    def steps(line: int) -> tuple[int, ...]:
        return tuple(origin.factors.get(line, 0) for origin in tile.origins)

    return Shard(
        symbol,
        tile.role,
        tensor.dtype,
        tensor.shape,
        tile.shape,
        steps(ROW_NUMBER),
        steps(COLUMN_NUMBER),
        tuple(origin.constant for origin in tile.origins),
        tile.order,
        *kernel.holder(tensor),
    )
