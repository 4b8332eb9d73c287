"""Keeps two programs from writing to one folder of records."""

import os
from pathlib import Path
from typing import IO

from tvm_ext.tuning.errors import RecordsError

LOCK = ".lock"


def locked(folder: Path) -> IO[str]:
    """Makes the folder if need be, and keeps others out of it until the file is closed.

    Where the system cannot lock files, nobody is kept out.

    Raises
    ------
    RecordsError
        Somebody else writes to the folder, or it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w", encoding="ascii")
    except OSError as error:
        raise RecordsError(
            f"cannot write records to {str(folder)!r}: {error.strerror or error}; expected a "
            "folder with write permission: choose another with --output"
        ) from error
    if os.name != "posix":
        return file
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RecordsError(
            f"another session writes to {str(folder)!r}; expected one at a time: wait for it or "
            "choose another folder with --output ('tvm-ext logs merge' joins them)"
        ) from error
    return file
