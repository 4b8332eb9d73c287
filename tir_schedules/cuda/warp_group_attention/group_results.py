"""Writes the results of a multiplying thread to memory, 16 bytes at a time where it can."""

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.tir_schedules.cuda.attention.attention_fragments import fragment_register
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, number
from tvm_ext.tir_schedules.cuda.launch import guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_groups import warp_group_instructions as hopper
from tvm_ext.tir_schedules.statements import sequence

_STORE_BYTES = 16
_LANES = 4
"""Lanes that share a row."""

_GATHERED, _PAIR = 8, 2
"""Neighbouring columns that a lane has after an exchange with its neighbours, and before."""


def write_results(products: Any, inside: Sequence[Any]) -> tirx.Stmt:
    """The statements; ``inside``: for each row of the thread whether it exists.

    ``products``: the ``GroupProducts`` whose results they are.
    """
    width = products.layout.width
    columns = _GATHERED if width % (_GATHERED * _LANES) == 0 else _PAIR
    statements = []
    if columns == _GATHERED:
        statements.append(hopper.gather_columns(buffer_data(products.results.buffer), width))
    for row, exists in enumerate(inside):
        runs = range(width // (columns * _LANES))
        stores = [_run(products, row, run, columns) for run in runs]
        statements.append(guarded(exists, sequence(stores)))
    return sequence(statements)


def _run(products: Any, row: int, run: int, columns: int) -> tirx.Stmt:
    """Neighbouring columns of a row, rounded, then stored."""
    output, width = products.problem.output, products.layout.width
    place = products.rows[row]
    vector = min(columns, _STORE_BYTES // output.element_bytes)
    lane = tirx.floormod(products.lane, number(_LANES))
    column = number(run * columns * _LANES) + lane * number(columns)
    start = output.address(b=place.batch, h=place.head, s=place.query) + column
    statements = []
    for first in range(0, columns, vector):
        held = products.arrays.registers("rounded", vector, output.dtype, ())

        def fill(i: Any, first: int = first, held: Any = held) -> tirx.Stmt:
            at = _register(row, run, number(first) + i, columns, width)
            return held.put(i, products.results.at(at).astype(output.dtype))

        def store(i: Any, first: int = first, held: Any = held) -> tirx.Stmt:
            return tirx.BufferStore(output.buffer, held.at(i), [start + number(first) + i])

        statements.append(repeated(vector, INDEX, fill))
        statements.append(repeated(vector, INDEX, store, tirx.ForKind.VECTORIZED))
    return sequence(statements)


def _register(row: int, run: int, column: Any, columns: int, width: int) -> Any:
    if columns == _GATHERED:
        return hopper.position(number(run), number(row), column)
    return fragment_register(number(row), number(run * _PAIR) + column, width)
