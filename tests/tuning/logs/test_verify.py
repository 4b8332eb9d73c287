"""Records that are built, run and compared again. What was timed is not looked at."""

import pytest
from record_folders import OTHER_TARGET, decided_trace, hash_of, record, split_trace, stored
from tvm import te

from tvm_ext.configs.errors import TargetError
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.recorded_schedule import workload
from tvm_ext.tuning.jobs import Timing, TimingPlan
from tvm_ext.tuning.logs.database_files import write_database
from tvm_ext.tuning.logs.record_folder import read_folder
from tvm_ext.tuning.logs.verify import OTHER_MACHINE, judged, verify_records
from tvm_ext.tuning.measurer import Measurement

# One call is enough: the times do not matter.
PLAN = TimingPlan(turn_seconds=1e-9, fewest_turns=1, most_turns=1)


@pytest.fixture(scope="module", autouse=True)
def workers(worker_stock):
    with worker_stock.lent():
        yield


@pytest.fixture(scope="module")
def machine():
    return resolve_target("cpu").with_cores(1)


def verify(folder, machine, *records, **options):
    write_database(folder, [stored(size) for size in (8, 4, 6)], records)
    return list(verify_records(read_folder(folder), machine, plan=PLAN, **options))


def a_sum(size):
    """A kernel with the parameters of the matmul that is none."""
    a, b = (te.placeholder((size, size), name=name) for name in "AB")
    return workload(
        te.create_prim_func([a, b, te.compute((size, size), lambda *at: a(*at) + b(*at))])
    )


@pytest.mark.extended
def test_each_record_ends_in_its_own_way(tmp_path, machine):
    def finish(mod):
        """A pass that breaks one of the kernels."""
        return a_sum(6) if int(mod["main"].params[0].shape[0]) == 6 else mod

    here = machine.tvm_target()
    found = verify(
        tmp_path,
        machine,
        record(8, 1e-6, here),
        record(8, 1e-6, OTHER_TARGET),
        record(4, 1e-6, here, decided_trace(4, no_such_decision=4)),
        record(6, 1e-6, here),
        finish=finish,
    )
    elsewhere, good, gone, wrong = found
    assert (elsewhere.status, elsewhere.has_failed) == (OTHER_MACHINE, False)
    # One call a side says nothing of which is faster.
    assert good.status in ("ok", "slower")
    assert good.seconds > 0
    assert good.default_seconds == good.gain * good.seconds
    assert good.to_json()["recorded_seconds"] == 1e-6
    assert not good.to_json()["recorded_is_modelled"]
    assert (gone.best.kernel, gone.status, gone.has_failed) == (hash_of(4), "build", True)
    assert "no_such_decision" in gone.message
    assert (wrong.best.kernel, wrong.status, wrong.seconds) == (hash_of(6), "wrong", None)
    assert "36 of 36 elements differ" in wrong.message


@pytest.mark.parametrize(("theirs", "status"), [(0.24, "slower"), (0.95, "ok"), (2.0, "ok")])
def test_a_record_that_the_default_beats_is_no_good_one(theirs: float, status: str):
    timing = Timing([1.0, 1.0], [theirs, theirs])
    found = judged(None, Measurement(None, "ok", timing=timing), has_default=True)
    assert (found.status, found.has_failed) == (status, status != "ok")
    assert (found.gain, found.default_seconds) == (theirs, theirs)


def test_nothing_for_this_machine_starts_no_process(tmp_path, machine, monkeypatch):
    monkeypatch.setattr("tvm_ext.tuning.logs.verify.Measurer", None)
    found = verify(tmp_path, machine, record(8, 1e-6, OTHER_TARGET, split_trace(8)))
    assert [one.status for one in found] == [OTHER_MACHINE]


def test_a_mesh_is_refused(tmp_path):
    with pytest.raises(TargetError, match="a mesh; expected a CPU or a GPU"):
        verify(tmp_path, resolve_target("wse3"))
