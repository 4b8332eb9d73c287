"""Writes a saved model whole or not at all; reads one, and refuses with the reason what is damaged
or made for elsewhere.
"""

import contextlib
import hashlib
import os
import platform
import re
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Literal

import tvm_ffi
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from tvm_ext.artifact.library import ZIP_ERRORS, LibraryFile, load_library
from tvm_ext.artifact.manifest import (
    FORMAT_NAME,
    FORMAT_VERSION,
    HOST_FORMAT_VERSION,
    HOST_MEMBER,
    LIBRARY_MEMBER,
    MANIFEST_MEMBER,
    REPORT_MEMBER,
    SHARDED_FORMAT_VERSION,
    Manifest,
    PartRecord,
    ShardedRecord,
    SpecializedRecord,
    TargetRecord,
    VersionsRecord,
    host_architecture,
    part_member,
)
from tvm_ext.configs.atomic_file import replacing
from tvm_ext.errors import ArtifactError
from tvm_ext.tensor_spec import TensorSpec

# The last words of a saved model: its format, and a digest of everything before the digest.


_DIGEST_LENGTH = 64
_CHUNK_BYTES = 1 << 20
_SEAL = re.compile(
    rb"%s format ([0-9]{1,9}) sha256 ([0-9a-f]{%d})" % (FORMAT_NAME.encode(), _DIGEST_LENGTH)
)
_LONGEST_SEAL = 128


@dataclass(frozen=True)
class Seal:
    """What the end of a file says: the format's number, and the digest as hexadecimal digits."""

    format_version: int
    digest: str


def read_seal(file: BinaryIO) -> Seal | None:
    """Read the end of an open file; None if it does not end with a seal."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _LONGEST_SEAL))
    tail = file.read(_LONGEST_SEAL)
    matches = list(_SEAL.finditer(tail))
    if not matches or matches[-1].end() != len(tail):
        return None
    return Seal(int(matches[-1][1]), matches[-1][2].decode("ascii"))


def digest_of_sealed(file: BinaryIO) -> str:
    """SHA-256 of every byte of an open file but the last 64, as hexadecimal digits."""
    remaining = file.seek(0, os.SEEK_END) - _DIGEST_LENGTH
    file.seek(0)
    digest = hashlib.sha256()
    while remaining > 0:
        chunk = file.read(min(_CHUNK_BYTES, remaining))
        if not chunk:
            raise OSError("the file became shorter while it was read")
        digest.update(chunk)
        remaining -= len(chunk)
    return digest.hexdigest()


def write_seal(file: BinaryIO) -> None:
    """Put the digest in the place of the zeros that end the file."""
    digest = digest_of_sealed(file)
    file.seek(-_DIGEST_LENGTH, os.SEEK_END)
    file.write(digest.encode("ascii"))


# Writes a saved model: all of it under its final name, or nothing.


_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def write_artifact(
    path: str | Path,
    *,
    library: bytes = b"",
    members: Mapping[str, bytes] | None = None,
    report_json: str,
    model_name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    target: TargetRecord,
    specialized: Sequence[SpecializedRecord] = (),
    sharded: ShardedRecord | None = None,
    created: datetime | None = None,
) -> None:
    """Save a compiled model as one file.

    Parameters
    ----------
    path : str | Path
        Where to save; an existing file is replaced, a symbolic link is followed.
    library : bytes
        The shared library, from :func:`tvm_ext.artifact.library.export_library_bytes`.
    members : Mapping[str, bytes] | None
        In its place, for a model of several parts: these, and its host steps.
    report_json : str
        The report of the compilation.
    model_name, inputs, outputs, target
        For the manifest; inputs and outputs in the order of the program's parameters and results.
    specialized : sequence of SpecializedRecord
        Inputs and outputs of the programs for exact sizes.
    sharded : ShardedRecord | None
        For a model for several devices, whose parts are their programs.
    created : datetime | None
        Moment to name in the manifest, with a time zone; now if None.

    Raises
    ------
    ArtifactError
        The path cannot be written, or a value does not fit the manifest.
    """
    code = {LIBRARY_MEMBER: library} if members is None else members
    parts = {**code, REPORT_MEMBER: _utf8(report_json)}
    version: Literal[1, 2, 3] = FORMAT_VERSION if members is None else HOST_FORMAT_VERSION
    if sharded is not None:
        version = SHARDED_FORMAT_VERSION
    unset = {"specialized": not specialized, "sharded": sharded is None}
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
            specialized=tuple(specialized),
            sharded=sharded,
        ).model_dump_json(
            indent=2, warnings="error", exclude={n for n, is_unset in unset.items() if is_unset}
        )
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
    all_members = {MANIFEST_MEMBER: f"{manifest_json}\n".encode(), **parts}
    # The digest takes the place of the zeros.
    seal = f"{FORMAT_NAME} format {version} sha256 {'0' * _DIGEST_LENGTH}".encode("ascii")
    with replacing(path) as file:
        _write_archive(file, all_members, seal)


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


# The first member's header: signature, 26 bytes that vary, its name.
_ZIP_SIGNATURE = b"PK\x03\x04"
_NAME_OFFSET = 30
_AGAIN = "compile the model again here"


@dataclass(frozen=True)
class LoadedArtifact:
    """A saved model that passed every check.

    Attributes
    ----------
    path : Path
        Where it was read from.
    manifest : Manifest
        What it is.
    members : dict[str, bytes]
        The parts by name, but for the library: host steps and compiled parts.
    report_json : str
        The report of its compilation.
    library_file : LibraryFile or None
        The shared library, which is not in memory; None for a model with host steps.
    """

    path: Path
    manifest: Manifest
    members: dict[str, bytes] = field(repr=False)
    report_json: str = field(repr=False)
    library_file: LibraryFile | None = field(default=None, repr=False)

    @property
    def library(self) -> LibraryFile:
        """The shared library; raises ArtifactError for a model with host steps, which has none."""
        if self.library_file is None:
            raise _refusal(
                self.path,
                "it has steps that the host computes; expected a single program: load it with "
                "tvm_ext.load",
            )
        return self.library_file

    @property
    def has_host_steps(self) -> bool:
        """Whether the host computes some steps of the model."""
        return HOST_MEMBER in self.members

    @property
    def sharded(self) -> ShardedRecord:
        """How it is split over devices; raises ArtifactError for a model for one device."""
        if self.manifest.sharded is None:
            raise _refusal(
                self.path,
                "it is for one device; expected a model for several: compile it with devices=2",
            )
        return self.manifest.sharded

    def part(self, index: int) -> "LoadedArtifact":
        """One of its compiled parts, a saved model; raises ArtifactError as ``read_artifact``."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / part_member(index)
            file.write_bytes(self.members[file.name])
            return read_artifact(file)

    def load_module(self) -> tvm_ffi.Module:
        """Load the code into this process, for ``relax.VirtualMachine(module, device)``.

        Nothing stays on the disk. TVM keeps a loaded library until the process ends.

        Raises
        ------
        ArtifactError
            The system refuses the library, or there is no room for temporary files.
        """
        return load_library(self.library)


def read_artifact(
    path: str | Path, *, host_features: frozenset[str] | None = None
) -> LoadedArtifact:
    """Read and check a saved model; none of its code runs yet.

    Parameters
    ----------
    path : str | Path
        The file.
    host_features : frozenset[str] | None
        LLVM names of this CPU's features; asked of the CPU if None.

    Raises
    ------
    ArtifactError
        In this order: the file is missing; it is not a saved model; its format is newer; its
        checksum differs; a part's checksum differs; it needs another TVM, another system, or
        CPU features that this machine lacks. The checksum of the library, which may be large, is
        looked at when it is read.
    """
    path = Path(path)
    with _opened(path) as file:
        _check_seal(path, file)
        members, sizes = _read_members(path, file)
        manifest = _parse_manifest(path, members[MANIFEST_MEMBER])
        _check_parts(path, manifest, members, sizes)
        record = manifest.parts.get(LIBRARY_MEMBER)
        library = LibraryFile(path, file, record) if record is not None else None
    _check_versions(path, manifest)
    _check_platform(path, manifest)
    _check_cpu(path, manifest, host_features)
    try:
        report_json = members[REPORT_MEMBER].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(path, f"{REPORT_MEMBER} is not UTF-8") from error
    return LoadedArtifact(path, manifest, members, report_json, library)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        mode = path.stat().st_mode
        # Opening a pipe would wait for ever.
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
            raise _refusal(
                path, f"it is {kind}; expected a saved model: give the path of a .tvmx file"
            )
        with path.open("rb") as file:
            yield file
    except FileNotFoundError as error:
        raise _refusal(
            path, "there is no such file; expected a saved model: check the path"
        ) from error
    except (OSError, ValueError) as error:
        raise _refusal(
            path,
            f"{getattr(error, 'strerror', None) or error}; "
            "expected a readable file: check the path and its permissions",
        ) from error


def _check_seal(path: Path, file: BinaryIO) -> None:
    start = file.read(_NAME_OFFSET + len(MANIFEST_MEMBER))
    ours = start.startswith(_ZIP_SIGNATURE) and start.endswith(MANIFEST_MEMBER.encode())
    seal = read_seal(file)
    if not ours and seal is None:
        raise _refusal(
            path,
            "it is not a saved model; expected a file that this "
            "package saved: compile the model and save it",
        )
    if seal is None:
        raise _damaged(path, "it is cut short, or something was added at its end")
    if seal.format_version > SHARDED_FORMAT_VERSION:
        raise _refusal(
            path,
            f"it was written by format {seal.format_version}, "
            f"this version reads {SHARDED_FORMAT_VERSION}: upgrade tvm-ext",
        )
    if digest_of_sealed(file) != seal.digest:
        raise _damaged(path, "its bytes do not have the checksum that it ends with")
    if seal.format_version < 1 or not ours:
        raise _invalid(path, f"its start or its format {seal.format_version} does not exist")


def _read_members(path: Path, file: BinaryIO) -> tuple[dict[str, bytes], dict[str, int]]:
    """The members by name, but for the library, and the sizes of all in bytes, in order."""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            names = tuple(info.filename for info in infos)
            if names[:1] != (MANIFEST_MEMBER,) or len(set(names)) < len(names):
                raise _invalid(path, f"its members are {', '.join(names) or 'none'}")
            for info in infos:
                _check_member(path, info)
            read = [info for info in infos if info.filename != LIBRARY_MEMBER]
            members = {info.filename: archive.read(info) for info in read}
            return members, {info.filename: info.file_size for info in infos}
    except ZIP_ERRORS as error:
        raise _invalid(path, "its archive cannot be read") from error


def _check_member(path: Path, info: zipfile.ZipInfo) -> None:
    # Equal sizes, too: zipfile would reserve room for whatever size is claimed.
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise _invalid(path, f"{info.filename} is compressed")
    if info.filename == MANIFEST_MEMBER and info.header_offset != 0:
        raise _invalid(path, "something was added at its start")


def _parse_manifest(path: Path, content: bytes) -> Manifest:
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise _invalid(path, f"{MANIFEST_MEMBER}: {describe_validation(error)}") from error


def _check_parts(
    path: Path, manifest: Manifest, members: dict[str, bytes], sizes: dict[str, int]
) -> None:
    expected = manifest.expected_members()
    if set(manifest.parts) != set(expected):
        listed = ", ".join(sorted(manifest.parts)) or "none"
        raise _invalid(path, f"{MANIFEST_MEMBER} lists the parts {listed}")
    if tuple(sizes) != (MANIFEST_MEMBER, *expected):
        raise _invalid(path, f"its members are {', '.join(sizes)}")
    for name in expected:
        # What is not in memory is looked at when it is read.
        known = PartRecord.of(members[name]) if name in members else None
        if sizes[name] != manifest.parts[name].size or known not in (None, manifest.parts[name]):
            raise _damaged(path, f"{name} does not have the checksum that the manifest names")


def _check_versions(path: Path, manifest: Manifest) -> None:
    saved, installed = manifest.versions, VersionsRecord.installed()
    for package, theirs, ours in (
        ("apache-tvm", saved.tvm, installed.tvm),
        ("apache-tvm-ffi", saved.tvm_ffi, installed.tvm_ffi),
    ):
        if theirs != ours:
            raise _refusal(
                path,
                f"it was compiled with {package} {theirs}, but {ours} "
                f"is installed; expected the same version: install {package}=={theirs}, "
                f"or {_AGAIN}",
            )


def _check_platform(path: Path, manifest: Manifest) -> None:
    target = manifest.target
    here = (platform.system(), host_architecture())
    if (target.system, target.machine) != here:
        raise _refusal(
            path,
            f"it was compiled for {target.system} {target.machine}, "
            f"but this is {' '.join(here)}; expected the same system: {_AGAIN}",
        )


def _check_cpu(path: Path, manifest: Manifest, host_features: frozenset[str] | None) -> None:
    required = manifest.target.required_features
    if not required:
        return
    if host_features is None:
        # Here and not at the top: reading a model that needs nothing must not ask the CPU.
        from tvm_ext.hardware.cpu.system import host_cpu_features

        host_features = host_cpu_features()
    missing = sorted(set(required) - host_features)
    if missing:
        raise _refusal(
            path,
            f"it needs the CPU features {', '.join(missing)}, which "
            f"this machine lacks; expected a CPU like {manifest.target.mcpu or 'the target'}: "
            f"{_AGAIN}",
        )


def _refusal(path: Path, message: str) -> ArtifactError:
    # What the message quotes from the file may hold line ends and other control characters.
    text = f"cannot load {str(path)!r}: {message}"
    return ArtifactError("".join(sign if sign.isprintable() else "?" for sign in text))


def _damaged(path: Path, what: str) -> ArtifactError:
    return _refusal(
        path,
        f"the file is damaged: {what}; expected it as it was saved: "
        "copy it again, or save the model again",
    )


def _invalid(path: Path, what: str) -> ArtifactError:
    return _refusal(
        path,
        f"it is not a valid saved model: {what}; expected a file that "
        "this package saved: save the model again",
    )
