"""The best record of each kernel on each target, with the decisions it stands for."""

from dataclasses import dataclass
from typing import Any

from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule, recorded_schedule
from tvm_ext.tuning.best_records import best_records
from tvm_ext.tuning.database_files import StoredRecord, trace_of
from tvm_ext.tuning.logs.folder import Records
from tvm_ext.tuning.record_kinds import RecordKinds


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
    is_modelled : bool
        Whether its time is a model's answer.
    """

    kernel: str
    name: str
    origins: list[str]
    record: StoredRecord
    recorded: RecordedSchedule
    is_modelled: bool = False

    @property
    def target(self) -> dict[str, Any]:
        """Attributes of the TVM target."""
        return self.record.target


def best_schedules(records: Records) -> list[BestSchedule]:
    """One for each kernel and target, in the order of the file.

    Records that do not apply to their workloads are added to the problems.
    """
    names, kinds = records.last_trials(), RecordKinds(records.trials)
    found = []
    for (kernel, _), record in best_records(records.files, records.trials).items():
        known = names.get(kernel)
        name, origins = (known.kernel_name, known.origins) if known else (kernel, [])
        recorded = best_schedule(records, record)
        is_modelled = kinds.is_modelled(record)
        found.append(BestSchedule(kernel, name, origins, record, recorded, is_modelled))
    return found


def best_schedule(records: Records, record: StoredRecord) -> RecordedSchedule:
    """What a record says that applies to its workload."""
    mod = records.files.workloads[record.workload].mod
    return recorded_schedule(mod, trace_of(record, mod), record.seconds)
