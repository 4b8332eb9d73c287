"""Reads a saved model and refuses, with the reason, one that is damaged or made for elsewhere."""

import contextlib
import platform
import stat
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import tvm
from pydantic import ValidationError

from tvm_ext.artifact.library import load_library_bytes
from tvm_ext.artifact.manifest import (
    HOST_FORMAT_VERSION,
    HOST_MEMBER,
    LIBRARY_MEMBER,
    MANIFEST_MEMBER,
    REPORT_MEMBER,
    Manifest,
    PartRecord,
    VersionsRecord,
    host_architecture,
)
from tvm_ext.artifact.seal import digest_of_sealed, read_seal
from tvm_ext.artifact.write import describe_validation
from tvm_ext.errors import ArtifactError

# The first member's header: signature, 26 bytes that vary, its name.
_ZIP_SIGNATURE = b"PK\x03\x04"
_NAME_OFFSET = 30
# What zipfile raises, besides OSError, on archives that are not as it expects.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)
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
        The parts by name: the shared library, or host steps and compiled parts.
    report_json : str
        The report of its compilation.
    """

    path: Path
    manifest: Manifest
    members: dict[str, bytes] = field(repr=False)
    report_json: str = field(repr=False)

    @property
    def library(self) -> bytes:
        """The shared library; raises ArtifactError for a model with host steps, which has none."""
        if self.has_host_steps:
            raise _refusal(
                self.path,
                "it has steps that the host computes; expected a single program: load it with "
                "tvm_ext.load",
            )
        return self.members[LIBRARY_MEMBER]

    @property
    def has_host_steps(self) -> bool:
        """Whether the host computes some steps of the model."""
        return HOST_MEMBER in self.members

    def load_module(self) -> tvm.runtime.Module:
        """Load the code into this process, for ``relax.VirtualMachine(module, device)``.

        Nothing stays on the disk. TVM keeps a loaded library until the process ends.

        Raises
        ------
        ArtifactError
            The system refuses the library, or there is no room for temporary files.
        """
        return load_library_bytes(self.library)


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
        CPU features that this machine lacks.
    """
    path = Path(path)
    with _opened(path) as file:
        _check_seal(path, file)
        members = _read_members(path, file)
    manifest = _parse_manifest(path, members[MANIFEST_MEMBER])
    _check_parts(path, manifest, members)
    _check_versions(path, manifest)
    _check_platform(path, manifest)
    _check_cpu(path, manifest, host_features)
    try:
        report_json = members[REPORT_MEMBER].decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(path, f"{REPORT_MEMBER} is not UTF-8") from error
    return LoadedArtifact(path, manifest, members, report_json)


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
    if seal.format_version > HOST_FORMAT_VERSION:
        raise _refusal(
            path,
            f"it was written by format {seal.format_version}, "
            f"this version reads {HOST_FORMAT_VERSION}: upgrade tvm-ext",
        )
    if digest_of_sealed(file) != seal.digest:
        raise _damaged(path, "its bytes do not have the checksum that it ends with")
    if seal.format_version < 1 or not ours:
        raise _invalid(path, f"its start or its format {seal.format_version} does not exist")


def _read_members(path: Path, file: BinaryIO) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            names = tuple(info.filename for info in infos)
            if names[:1] != (MANIFEST_MEMBER,) or len(set(names)) < len(names):
                raise _invalid(path, f"its members are {', '.join(names) or 'none'}")
            for info in infos:
                _check_member(path, info)
            return {info.filename: archive.read(info) for info in infos}
    except _ZIP_ERRORS as error:
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


def _check_parts(path: Path, manifest: Manifest, members: dict[str, bytes]) -> None:
    expected = manifest.expected_members()
    if set(manifest.parts) != set(expected):
        listed = ", ".join(sorted(manifest.parts)) or "none"
        raise _invalid(path, f"{MANIFEST_MEMBER} lists the parts {listed}")
    if tuple(members) != (MANIFEST_MEMBER, *expected):
        raise _invalid(path, f"its members are {', '.join(members)}")
    for name in expected:
        if PartRecord.of(members[name]) != manifest.parts[name]:
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
        from tvm_ext.hardware.host import host_cpu_features

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
