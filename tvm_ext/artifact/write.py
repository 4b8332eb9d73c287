"""Writes a saved model: all of it under its final name, or nothing.

The file grows under a temporary name in the same folder and takes its place when it is complete and
on the disk, so that a reader never meets half a file and a failure leaves an older file as it was.
"""

import contextlib
import os
import secrets
import zipfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from tvm_ext.artifact.manifest import (
    LIBRARY_MEMBER,
    MANIFEST_MEMBER,
    REPORT_MEMBER,
    Manifest,
    PartRecord,
    TargetRecord,
    VersionsRecord,
)
from tvm_ext.artifact.seal import EMPTY_SEAL, write_seal
from tvm_ext.errors import ArtifactError
from tvm_ext.tensor_spec import TensorSpec

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_artifact(
    path: str | Path,
    *,
    library: bytes,
    report_json: str,
    model_name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: TargetRecord,
    created: datetime | None = None,
) -> None:
    """Save a compiled model as one file.

    Parameters
    ----------
    path : str | Path
        Where to save; an existing file is replaced, a symbolic link is followed.
    library : bytes
        The shared library, from :func:`tvm_ext.artifact.library.export_library_bytes`.
    report_json : str
        The report of the compilation.
    model_name, inputs, outputs, target
        For the manifest; inputs and outputs in the order of the program's parameters and results.
    created : datetime | None
        Moment to name in the manifest, with a time zone; now if None.

    Raises
    ------
    ArtifactError
        The path cannot be written, or a value does not fit the manifest.
    """
    parts = {LIBRARY_MEMBER: library, REPORT_MEMBER: _utf8(report_json)}
    moment = created or datetime.now(timezone.utc)
    try:
        manifest_json = Manifest(
            versions=VersionsRecord.installed(),
            created=moment.astimezone(timezone.utc).replace(microsecond=0),
            # A file name that is not Unicode must not stand in the way of saving.
            model_name=_utf8(model_name).decode("utf-8"),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            target=target,
            parts={name: PartRecord.of(content) for name, content in parts.items()},
        ).model_dump_json(indent=2, warnings="error")
        # What cannot be read back must not be saved.
        Manifest.model_validate_json(manifest_json)
    except ValidationError as error:
        raise ArtifactError(
            f"cannot save the model: {describe_validation(error)}; expected values that fit the "
            "manifest: correct the value"
        ) from error
    except PydanticSerializationError as error:
        raise ArtifactError(
            f"cannot save the model: {' '.join(str(error).split())}; expected names in Unicode and "
            "sizes as int: rename the inputs and outputs, or convert the sizes"
        ) from error
    members = {MANIFEST_MEMBER: f"{manifest_json}\n".encode(), **parts}
    with _replacing(path) as file:
        _write_archive(file, members)


def check_writable(path: str | Path) -> None:
    """Find out before a long compilation whether its result can be saved here; leaves no file.

    Raises
    ------
    ArtifactError
        The path is a folder, its folder is missing, or writing is not allowed.
    """
    final = _final_path(path)
    with _temporary_sibling(path, final):
        pass


def describe_validation(error: ValidationError) -> str:
    """The first complaint of pydantic as one line: field and reason."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"]) or "manifest"
    return f"{field}: {first['msg']}"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _write_archive(file: BinaryIO, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = EMPTY_SEAL
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=_ZIP_EPOCH)
            info.create_system = 3  # Unix, on every system, for equal bytes everywhere
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    write_seal(file)


@contextlib.contextmanager
def _replacing(path: str | Path) -> Iterator[BinaryIO]:
    """An open temporary file that takes the place of ``path`` if the block succeeds."""
    final = _final_path(path)
    with _temporary_sibling(path, final) as (file, temporary):
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(temporary, final)
    _sync_folder(final.parent)


@contextlib.contextmanager
def _temporary_sibling(path: str | Path, final: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file beside ``final``, gone after the block unless it was renamed in it."""
    temporary = final.parent / f".tvmx-{secrets.token_hex(8)}.tmp"
    try:
        # Unlike tempfile's, a plain new file gets the permissions the user's umask asks for.
        with temporary.open("x+b") as file:
            yield file, temporary
    except (OSError, ValueError) as error:
        raise ArtifactError(
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
    ArtifactError
        What can be seen without writing already rules the path out.
    """
    try:
        final = Path(os.path.realpath(path))
        final.stat()
        exists = True
    except FileNotFoundError:
        exists = False
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"cannot write {str(path)!r}: {getattr(error, 'strerror', None) or error}; expected "
            "the path of a file in an existing folder: correct the path"
        ) from error
    if final.is_dir():
        raise ArtifactError(
            f"cannot write {str(path)!r}: it is a folder; expected a file name: "
            f"try {str(Path(path) / 'model.tvmx')!r}"
        )
    if exists and not final.is_file():
        raise ArtifactError(
            f"cannot write {str(path)!r}: it is a device or a pipe; expected a file: "
            "choose another path"
        )
    if exists and not os.access(final, os.W_OK):
        raise ArtifactError(
            f"cannot write {str(path)!r}: the file there is write-protected; expected one that "
            "may be replaced: allow writing (chmod u+w) or choose another path"
        )
    if not final.parent.is_dir():
        raise ArtifactError(
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
