"""Checkpoints: all that a step takes from the one before, in one file of NumPy's."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tvm_ext.configs.atomic_file import replacing
from tvm_ext.errors import InputError

_STEPS = "tvm_ext::steps"
# What NumPy and the archive raise for files that are no checkpoint, or were cut or changed.
_UNREADABLE = (
    *(OSError, ValueError, KeyError, EOFError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
_ADVICE = "save one with Trainer.save of a trainer of the same model, optimizer and train"


def write_checkpoint(path: str | Path, state: Mapping[str, np.ndarray], steps: int) -> None:
    """Writes the arrays and the number of steps, whole or not at all; raises OutputPathError."""
    arrays = {_STEPS: np.array(steps, np.int64), **state}
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.array(array, order="C"), allow_pickle=False)


def read_checkpoint(
    path: str | Path, wanted: Mapping[str, tuple[tuple[int, ...], np.dtype]]
) -> tuple[dict[str, np.ndarray], int]:
    """The arrays of these names, shapes and types, and the number of steps.

    Raises
    ------
    InputError
        The file is no checkpoint, or holds something else.
    """
    try:
        # np.load would take a single array, too, and a member that is no array for bytes.
        with (
            Path(path).open("rb") as file,
            np.lib.npyio.NpzFile(file, allow_pickle=False) as archive,
        ):
            found = {name: np.asarray(archive[name]) for name in archive.files}
    except _UNREADABLE as error:
        raise InputError(
            f"{path} cannot be read as a checkpoint ({error}); expected a file that "
            f"Trainer.save wrote: {_ADVICE}"
        ) from error
    steps = found.pop(_STEPS, None)
    if (
        steps is None
        or steps.shape
        or steps.dtype != np.int64
        or steps < 0
        or set(found) != set(wanted)
    ):
        other = sorted(set(found) ^ set(wanted))
        raise InputError(
            f"{path} is a checkpoint of something else ({', '.join(other[:3]) or 'no steps'}); "
            f"expected one with the {len(wanted)} arrays of this trainer: {_ADVICE}"
        )
    for name, (shape, dtype) in wanted.items():
        array = found[name]
        if array.shape != shape or array.dtype != dtype:
            raise InputError(
                f"{path} has '{name}' as {array.dtype}{list(array.shape)}; expected "
                f"{dtype}{list(shape)}: {_ADVICE}"
            )
    return {name: found[name] for name in wanted}, int(steps)
