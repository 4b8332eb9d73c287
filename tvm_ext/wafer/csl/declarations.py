"""What stands before the functions of a PE's program: parameters, libraries, arrays, variables."""

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import csl
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerAttr,
    MemRefType,
)

from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.wafer.csl.body import I16, STRUCT, U16, Body, Memory, Names
from tvm_ext.wafer.csl.kernel import LOCAL, PLACES, PeKernel, Tensor

# What the vendor's library of collective operations needs, as a file of CSL of its own.
#
# xDSL's csl dialect has no operation for the number of a task as a value, nor for structures with
# unnamed fields, so this part is text; the programs import it. The numbers are those of the
# vendor's own example of SUMMA (csl-examples, benchmarks/gemm-collectives_2d, layout.csl), and
# leave the colours of host copies (21 to 23, 27 to 31) alone.


FILE = "collectives.csl"

STEP_TASK = 13
ARRIVAL_TASKS = {ROW: 14, COLUMN: 15}
ARRIVALS = {ROW: "row_arrived", COLUMN: "column_arrived"}
"""The tasks that a message along a row, or a column, starts when it is there."""

QUEUES = {ROW: (2, 4), COLUMN: (3, 5)}
REGISTERS = {ROW: 1, COLUMN: 2}
"""Of descriptors, for each of the two instances of the library in a PE."""

COLOURS = 4
"""Routes that the library takes in every router."""


def collectives_source() -> str:
    """The file's text."""
    return f"""\
// Resources of <collectives_2d>: colours and tasks of its own, and the tasks that it starts.

const {ARRIVALS[ROW]}_id : local_task_id = @get_local_task_id({ARRIVAL_TASKS[ROW]});
const {ARRIVALS[COLUMN]}_id : local_task_id = @get_local_task_id({ARRIVAL_TASKS[COLUMN]});

const resources = .{{
  .x_colors = .{{ @get_color(0), @get_color(1) }},
  .x_entrypoints = .{{ @get_local_task_id(8), @get_local_task_id(9) }},
  .y_colors = .{{ @get_color(4), @get_color(5) }},
  .y_entrypoints = .{{ @get_local_task_id(10), @get_local_task_id(11) }},
}};
"""


COORDINATES = {line: axis for line, (axis, _) in PLACES.items()}
"""The parameter of a PE's place along a line."""

COPY_PARAMETERS = "memcpy_params"
COLLECTIVE_PARAMETERS = "c2d_params"

_LIBRARY = {ROW: "mpi_x", COLUMN: "mpi_y"}
_AXES = {ROW: "x", COLUMN: "y"}
_RESERVED = (
    *COORDINATES.values(),
    *_LIBRARY.values(),
    COPY_PARAMETERS,
    COLLECTIVE_PARAMETERS,
    "sys_mod",
    "collectives",
    "math",
    "compute",
    "next_step",
    "row_arrived",
    "column_arrived",
)


class Declarations:
    """Declares what a kernel needs, each thing once.

    Parameters
    ----------
    kernel : PeKernel
        The kernel.
    lines : sequence of str
        Lines of PEs that messages go along: "row", "column".

    Attributes
    ----------
    body : Body
        The beginning of the program.
    host
        The library of what comes from the host.
    places, libraries : dict[str, Any]
        For each of ``lines``, the PE's place along it, and the library of broadcasts.
    tasks
        Numbers of tasks.
    memory : Memory
        The arrays.
    symbols : dict[Tensor, str]
        Names of the tensors that the host writes and reads.
    """

    def __init__(self, kernel: PeKernel, lines: Sequence[str]) -> None:
        self.body = Body()
        self._names = Names(_RESERVED)
        self._math: Any = None
        self._pointers: dict[Any, Any] = {}
        copies = self._parameter(COPY_PARAMETERS, STRUCT)
        self.host = self._imported("sys_mod", "<memcpy/memcpy>", copies)
        self.places = {line: self._parameter(COORDINATES[line], I16) for line in lines}
        self.libraries: dict[str, Any] = {}
        self.tasks: Any = None
        if lines:
            self._import_collectives(lines)
        self.memory = Memory(kernel, self.body, self._names)
        self.symbols: dict[Tensor, str] = {
            tensor: str(self.memory.arrays[tensor][0].name_hint)
            for tensor, tile in kernel.tiles.items()
            if tile.role != LOCAL
        }
        for tensor in self.symbols:
            self.pointer(self.memory.arrays[tensor][0])

    def export(self) -> None:
        """Makes the arrays of ``symbols`` known to the host."""
        for tensor, name in self.symbols.items():
            self.body.add(csl.SymbolExportOp(name, self.pointer(self.memory.arrays[tensor][0])))

    def _import_collectives(self, lines: Sequence[str]) -> None:
        parameters = self._parameter(COLLECTIVE_PARAMETERS, STRUCT)
        self.tasks = self._imported("collectives", FILE)
        for line in lines:
            own = self.body.member(parameters, _AXES[line], STRUCT)
            settings = self.body.named(f"{_AXES[line]}_settings", _settings(line, own))
            self.libraries[line] = self._imported(_LIBRARY[line], "<collectives_2d/pe>", settings)

    def math(self) -> Any:
        """The library of functions of one value."""
        if self._math is None:
            self._math = self._imported("math", "<math>")
        return self._math

    def variable(self, name: str) -> Any:
        """An integer that functions share, 0 at the beginning."""
        operation = csl.VariableOp.from_value(IntegerAttr(0, I16))
        return self.body.named(self._names.unique(name), operation)

    def pointer(self, array: Any) -> Any:
        """A pointer to the first element of an array."""
        if array not in self._pointers:
            kind = csl.PtrType.get(array.type.element_type, False, False)
            name = self._names.unique(f"{array.name_hint}_ptr")
            self._pointers[array] = self.body.named(name, csl.AddressOfOp(array, kind))
        return self._pointers[array]

    def _parameter(self, name: str, kind: Any) -> Any:
        return self.body.add(csl.ParamOp(name, kind))

    def _imported(self, name: str, module: str, settings: Any = None) -> Any:
        return self.body.named(name, csl.ImportModuleConstOp(module, settings))


def _settings(line: str, parameters: Any) -> Any:
    """How the library is imported: its part of the layout's parameters, queues, registers."""
    numbers: dict[str, Sequence[int]] = {"queues": QUEUES[line]}
    for register in ("dest_dsr_ids", "src0_dsr_ids", "src1_dsr_ids"):
        numbers[register] = (REGISTERS[line],)
    structure = csl.ConstStructOp(("dim_params", parameters))
    structure.properties["items"] = DictionaryAttr(
        {
            name: DenseIntOrFPElementsAttr.from_list(MemRefType(U16, [len(values)]), list(values))
            for name, values in numbers.items()
        }
    )
    return structure
