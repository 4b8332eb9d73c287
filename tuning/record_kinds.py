"""Which records of a database hold measured times, and which the answers of a model.

MetaSchedule's form has no place for it. The log beside the database says it: a record is of a
model if a modelled trial has its trace and its time, and no measured one has.
"""

import math
from collections.abc import Iterable

from tvm_ext.tuning.database_files import StoredRecord
from tvm_ext.tuning.target_key import target_key
from tvm_ext.tuning.trial import Trial

Group = tuple[str, str]
"""A kernel's hash and the key of a target."""

# Other programs write times with fewer digits.
_SAME_TIME = 1e-9


def group_of(record: StoredRecord) -> Group:
    """Of which kernel a record is, on which target."""
    return record.workload, target_key(record.target)


class RecordKinds:
    """See the module's text.

    Parameters
    ----------
    trials : Iterable[Trial]
        Those of the log beside the records.
    """

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._modelled: dict[Group, list[Trial]] = {}
        self._measured: dict[Group, list[Trial]] = {}
        for trial in trials:
            if trial.is_timed:
                kind = self._modelled if trial.is_modelled else self._measured
                kind.setdefault((trial.kernel, target_key(trial.target)), []).append(trial)

    def is_modelled(self, record: StoredRecord) -> bool:
        """Whether the record's time is a model's answer."""
        return bool(self.modelled_trials(record))

    def modelled_trials(self, record: StoredRecord) -> list[Trial]:
        """The trials in which a model gave the record's time; none if it was measured."""
        modelled = _behind(self._modelled, record)
        return modelled if modelled and not _behind(self._measured, record) else []

    def comparable(self, records: Iterable[StoredRecord]) -> list[StoredRecord]:
        """The records without those of a model for kernels that were measured on their target."""
        known = list(records)
        if not self._modelled:
            return known
        kinds = [self.is_modelled(record) for record in known]
        measured = set(self._measured)
        measured |= {group_of(one) for one, kind in zip(known, kinds, strict=True) if not kind}
        return [
            one
            for one, kind in zip(known, kinds, strict=True)
            if not kind or group_of(one) not in measured
        ]


def _behind(trials: dict[Group, list[Trial]], record: StoredRecord) -> list[Trial]:
    """The trials with the trace and the time of a record."""
    return [
        trial
        for trial in trials.get(group_of(record), ())
        if trial.trace == record.trace
        and math.isclose(trial.seconds or 0.0, record.seconds, rel_tol=_SAME_TIME)
    ]
