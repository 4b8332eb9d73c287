"""Writes a saved model: all of it under its final name, or nothing."""

import zipfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Literal

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from tvm_ext.artifact.manifest import (
    FORMAT_VERSION,
    HOST_FORMAT_VERSION,
    LIBRARY_MEMBER,
    MANIFEST_MEMBER,
    REPORT_MEMBER,
    Manifest,
    PartRecord,
    TargetRecord,
    VersionsRecord,
)
from tvm_ext.artifact.seal import empty_seal, write_seal
from tvm_ext.configs.atomic_file import replacing
from tvm_ext.errors import ArtifactError
from tvm_ext.tensor_spec import TensorSpec

_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_artifact(
    path: str | Path,
    *,
    library: bytes = b"",
    host: Mapping[str, bytes] | None = None,
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
    host : Mapping[str, bytes] | None
        In its place, for a model with host steps: the members that hold these and the parts.
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
    code = {LIBRARY_MEMBER: library} if host is None else host
    parts = {**code, REPORT_MEMBER: _utf8(report_json)}
    version: Literal[1, 2] = FORMAT_VERSION if host is None else HOST_FORMAT_VERSION
    moment = created or datetime.now(timezone.utc)
    try:
        manifest_json = Manifest(
            format_version=version,
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
    with replacing(path) as file:
        _write_archive(file, members, empty_seal(version))


def describe_validation(error: ValidationError) -> str:
    """The first complaint of pydantic as one line: field and reason."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"]) or "manifest"
    return f"{field}: {first['msg']}"


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


def _write_archive(file: BinaryIO, members: dict[str, bytes], seal: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = seal
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date_time=_ZIP_EPOCH)
            info.create_system = 3  # Unix, on every system, for equal bytes everywhere
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    write_seal(file)
