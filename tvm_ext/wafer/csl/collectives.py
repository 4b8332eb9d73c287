"""What the vendor's library of collective operations needs, as a file of CSL of its own.

xDSL's csl dialect has no operation for the number of a task as a value, nor for structures with
unnamed fields, so this part is text; the programs import it. The numbers are those of the vendor's
own example of SUMMA (csl-examples, benchmarks/gemm-collectives_2d, layout.csl), and leave the
colours of host copies (21 to 23, 27 to 31) alone.
"""

from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW

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
