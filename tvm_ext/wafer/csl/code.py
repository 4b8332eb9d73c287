"""CSL source of one kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm import tirx
from xdsl.dialects.builtin import ModuleOp

from tvm_ext.configs.atomic_file import OutputPathError, write_text
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.limits import check_limits
from tvm_ext.tuning.mesh_analysis.loops import NotReadable
from tvm_ext.wafer.csl import collectives
from tvm_ext.wafer.csl.errors import CslError, NotCovered
from tvm_ext.wafer.csl.kernel import COLUMN_NUMBER, ROW_NUMBER, MeshKernel
from tvm_ext.wafer.csl.layout import layout
from tvm_ext.wafer.csl.pe_program import pe_program
from tvm_ext.wafer.csl.read_kernel import read_kernel
from tvm_ext.wafer.csl.source import csl_source
from tvm_ext.wafer.csl.values import Tensor


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


def kernel_code(func: tirx.PrimFunc, mesh: MeshDescription, name: str = "main") -> CslCode:
    """The CSL source of a kernel that is scheduled for a mesh.

    Parameters
    ----------
    func : tirx.PrimFunc
        The kernel, with the annotations of ``tir_schedules/wafer/annotations.py``: elementwise
        work, or a product of matrices as SUMMA, with what is computed from its result.
    mesh : MeshDescription
        The machine, for its limits.
    name : str
        What to call it in messages and comments.

    Raises
    ------
    CslError
        The kernel does something that no code is written for.
    MeshLimitError
        It takes more memory, PEs or routes than the mesh has.
    """
    try:
        kernel = read_kernel(func, name)
        program = pe_program(kernel)
    except (NotCovered, NotReadable) as error:
        raise CslError(
            f"there is no code for kernel '{name}': {error}; expected work of each PE on its own, "
            "or with multicasts between PEs, as in SUMMA"
        ) from error
    colours = collectives.COLOURS if program.lines else 0
    check_limits(mesh, kernel.rows, kernel.columns, program.bytes, colours)
    module = ModuleOp([program.module, layout(kernel, program.lines)])
    files = csl_source(module)
    if program.lines:
        files[collectives.FILE] = collectives.collectives_source()
    heading = _heading(kernel)
    texts = {file: heading + text for file, text in files.items()}
    shards = tuple(_shard(kernel, t, symbol) for t, symbol in program.symbols.items())
    return CslCode(name, kernel.rows, kernel.columns, texts, shards, program.bytes, module)


def _heading(kernel: MeshKernel) -> str:
    name = "".join(c if c.isprintable() else "?" for c in kernel.name)
    return (
        f"// Kernel {name} on {kernel.rows} rows and {kernel.columns} columns of PEs.\n"
        "// Made by tvm-ext; not compiled by the vendor's compiler.\n\n"
    )


def _shard(kernel: MeshKernel, tensor: Tensor, symbol: str) -> Shard:
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
