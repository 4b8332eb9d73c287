"""Writes a file, or a folder, under its final name whole, or not at all.

The file grows under a temporary name in the same folder and takes its place when it is complete and
on the disk, so that a reader never meets half a file and a failure leaves an older file as it was.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tvm_ext.configs.errors import TvmExtError


class OutputPathError(TvmExtError):
    """A result cannot be written where it was asked for."""


def check_writable(path: str | Path) -> None:
    """Find out before a long computation whether its result can be written here; leaves no file.

    Raises
    ------
    OutputPathError
        The path is a folder, its folder is missing, or writing is not allowed.
    """
    final = _final_path(path)
    with _temporary_sibling(path, final):
        pass


@contextlib.contextmanager
def replacing(path: str | Path, is_durable: bool = True) -> Iterator[BinaryIO]:
    """An open temporary file that takes the place of ``path`` if the block succeeds.

    Unless ``is_durable``, a power cut soon after may leave less of it than was written.

    Raises
    ------
    OutputPathError
        The file cannot be written; nothing is left behind, an older file is as it was.
    """
    final = _final_path(path)
    with _temporary_sibling(path, final) as (file, temporary):
        yield file
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
        file.close()
        os.replace(temporary, final)
    if is_durable:
        _sync_folder(final.parent)


def write_text(path: str | Path, text: str) -> None:
    """Writes ``text`` as UTF-8; raises OutputPathError as ``replacing`` does."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", errors="replace"))


@contextlib.contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """A temporary folder that takes the name ``path`` if the block succeeds.

    Raises
    ------
    OutputPathError
        Something is there already that is not an empty folder, or nothing can be written; nothing
        is left behind.
    """
    final = Path(os.path.realpath(path))
    with _temporary_folder(path, final) as temporary:
        yield temporary
        os.replace(temporary, final)
    _sync_folder(final.parent)


def check_new_folder(path: str | Path) -> None:
    """Find out before a long computation whether ``new_folder`` can be made here; leaves nothing.

    Raises
    ------
    OutputPathError
        As ``new_folder``.
    """
    with _temporary_folder(path, Path(os.path.realpath(path))):
        pass


@contextlib.contextmanager
def _temporary_folder(path: str | Path, final: Path) -> Iterator[Path]:
    """A new folder beside ``final``, gone after the block unless it was renamed in it."""
    temporary = final.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        if final.exists() and not (final.is_dir() and not any(final.iterdir())):
            raise OutputPathError(
                f"cannot write {str(path)!r}: something is there already; expected a new or an "
                "empty folder: choose another, or remove it first"
            )
        temporary.mkdir()
        yield temporary
    except (OSError, ValueError) as error:
        raise OutputPathError(
            f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}; expected a "
            "new folder in one with write permission and free space: choose another or make room"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _temporary_sibling(path: str | Path, final: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file beside ``final``, gone after the block unless it was renamed in it."""
    temporary = final.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        # Unlike tempfile's, a plain new file gets the permissions the user's umask asks for.
        with temporary.open("x+b") as file:
            yield file, temporary
    except (OSError, ValueError) as error:
        raise OutputPathError(
            f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}; expected a "
            "folder with write permission and free space: choose another path or make room"
        ) from error
    finally:
        with contextlib.suppress(OSError, ValueError):
            temporary.unlink()


def _final_path(path: str | Path) -> Path:
    """The path with symbolic links resolved.

    Raises
    ------
    OutputPathError
        What can be seen without writing already rules the path out.
    """
    try:
        final = Path(os.path.realpath(path))
        final.stat()
        exists = True
    except FileNotFoundError:
        exists = False
    except (OSError, ValueError) as error:
        raise OutputPathError(
            f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}; expected "
            "the path of a file in an existing folder: correct the path"
        ) from error
    if final.is_dir():
        raise OutputPathError(
            f"cannot write {str(path)!r}: it is a folder; expected a file name: name a file in it"
        )
    if exists and not final.is_file():
        raise OutputPathError(
            f"cannot write {str(path)!r}: it is a device or a pipe; expected a file: "
            "choose another path"
        )
    if exists and not os.access(final, os.W_OK):
        raise OutputPathError(
            f"cannot write {str(path)!r}: the file there is write-protected; expected one that "
            "may be replaced: allow writing (chmod u+w) or choose another path"
        )
    if not final.parent.is_dir():
        raise OutputPathError(
            f"cannot write {str(path)!r}: the folder {str(final.parent)!r} does not exist; "
            "expected an existing folder: create it first"
        )
    return final


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
