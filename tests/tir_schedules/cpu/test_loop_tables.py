"""Tables of what one loop decides, in kernels of known sizes."""

import pytest
import tvm
from cpu_kernels import scheduled
from lowering import assert_same, f32, kernel_of, run
from machines import MACHINE
from tvm import relax, tirx

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.elementwise import CpuElementwise


def enlarged(rows: int, columns: int, images: int = 3) -> tirx.PrimFunc:
    """Linear interpolation to a size that is no multiple of the old one."""
    return kernel_of(
        lambda x: relax.op.image.resize2d(x, (rows, columns), layout="NCHW", method="linear"),
        f32(1, images, 7, 11),
    )


@pytest.mark.parametrize("cores", [1, 4])
def test_places_and_weights_of_rows_and_columns_are_worked_out_once(cores: int) -> None:
    func = enlarged(18, 29)
    found = scheduled(CpuElementwise(), func, MACHINE.with_cores(cores))
    main = [store for store in nodes(found.body, tirx.BufferStore) if _reads_images(store)]
    assert len(main) == 1
    assert not nodes(main[0].value, tvm.ir.Call)
    # Two neighbours and a weight of a row, and of a column.
    assert len(nodes(found.body, tirx.AllocBuffer)) == 6
    results = run({"plain": func, "tables": found})
    assert_same(results["plain"], results["tables"], "tables")


def test_two_rows_are_too_few_for_tables_of_columns() -> None:
    found = scheduled(CpuElementwise(), enlarged(2, 29, images=1), MACHINE)
    tables = nodes(found.body, tirx.AllocBuffer)
    assert {int(table.buffer.shape[0]) for table in tables} == {2}


def _reads_images(store: tirx.BufferStore) -> bool:
    return any("x" in load.source.name for load in nodes(store.value, tvm.ir.TensorLoad))
