"""The best record of each kernel on each target, with the decisions it stands for."""

from dataclasses import dataclass
from typing import Any

from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule, recorded_schedule
from tvm_ext.tuning.best_records import best_records
from tvm_ext.tuning.database_files import StoredRecord, trace_of
from tvm_ext.tuning.logs.folder import Records


@dataclass(frozen=True)
class BestSchedule:
    """A kernel's best record on a target.

    Attributes
    ----------
    kernel, name : str
        The hash of its workload; its name, or the hash again when only records know it.
    origins : list[str]
        The model's nodes that it computes.
    record : StoredRecord
        The record itself.
    recorded : RecordedSchedule
        What it says.
    """

    kernel: str
    name: str
    origins: list[str]
    record: StoredRecord
    recorded: RecordedSchedule

    @property
    def target(self) -> dict[str, Any]:
        """Attributes of the TVM target."""
        return self.record.target


def best_schedules(records: Records) -> list[BestSchedule]:
    """One for each kernel and target, in the order of the file.

    Records that do not apply to their workloads are added to the problems.
    """
    names = records.last_trials()
    found = []
    for (kernel, _), record in best_records(records.files).items():
        known = names.get(kernel)
        name, origins = (known.kernel_name, known.origins) if known else (kernel, [])
        found.append(BestSchedule(kernel, name, origins, record, best_schedule(records, record)))
    return found


def best_schedule(records: Records, record: StoredRecord) -> RecordedSchedule:
    """What a record says that applies to its workload."""
    mod = records.files.workloads[record.workload].mod
    return recorded_schedule(mod, trace_of(record, mod), record.seconds)
