"""A folder of records as it is read: the log, and MetaSchedule's two files."""

from dataclasses import dataclass
from pathlib import Path

from tvm_ext.tuning.database_files import RECORDS, WORKLOADS, DatabaseFiles, read_database
from tvm_ext.tuning.errors import RecordsError
from tvm_ext.tuning.lines import Problem
from tvm_ext.tuning.trial import Trial
from tvm_ext.tuning.trial_log import TRIALS, TrialLog, read_trials

FILES = (TRIALS, WORKLOADS, RECORDS)


@dataclass(frozen=True)
class Records:
    """What could be read of a folder.

    Attributes
    ----------
    folder : Path
        Where it is.
    log : TrialLog
        The trials.
    files : DatabaseFiles
        The workloads and records.
    """

    folder: Path
    log: TrialLog
    files: DatabaseFiles

    @property
    def trials(self) -> list[Trial]:
        """In the order of the log."""
        return self.log.trials

    @property
    def problems(self) -> list[Problem]:
        """The lines that could not be used, as far as they were looked at."""
        return [*self.log.problems, *self.files.problems]

    def last_trials(self) -> dict[str, Trial]:
        """The last trial of each kernel, which knows the name it has now."""
        return {trial.kernel: trial for trial in self.trials}


def has_records(folder: Path) -> bool:
    """Whether any of the three files is there."""
    return any((folder / name).exists() for name in FILES)


def check_folder(folder: Path) -> None:
    """Raises RecordsError for a folder that is missing or holds no records."""
    if not folder.is_dir():
        found = "it is a file" if folder.exists() else "it does not exist"
        raise RecordsError(
            f"no records in {str(folder)!r}: {found}; expected a folder that 'tvm-ext tune' wrote: "
            "check the path"
        )
    if not has_records(folder):
        raise RecordsError(
            f"no records in {str(folder)!r}; expected at least one of {', '.join(FILES)} in it: "
            "check the path"
        )


def read_folder(folder: Path) -> Records:
    """Reads all that can be read.

    Raises
    ------
    RecordsError
        There are no records, or a file cannot be read at all.
    """
    check_folder(folder)
    return Records(folder, read_trials(folder), read_database(folder))
