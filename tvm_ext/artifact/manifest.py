"""The manifest of a saved model: what it is, what made it, and what it needs to run."""

import hashlib
import platform
from importlib import metadata
from typing import IO, Annotated, Final, Literal, Protocol

import tvm_ffi
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from tvm_ext import __version__
from tvm_ext.hardware.cpu.features import architecture_of
from tvm_ext.tensor_spec import TensorSpec

FORMAT_NAME: Final = "tvm-ext model"
FORMAT_VERSION: Final = 1
# Of a model with host steps, which older versions cannot run.
HOST_FORMAT_VERSION: Final = 2
# Of a model for several devices, which is the newest format.
SHARDED_FORMAT_VERSION: Final = 3

_CHUNK_BYTES = 1 << 20

MANIFEST_MEMBER = "manifest.json"
LIBRARY_MEMBER = "model.so"
REPORT_MEMBER = "report.json"
PART_MEMBERS = (LIBRARY_MEMBER, REPORT_MEMBER)
HOST_MEMBER = "host.onnx"


def part_member(index: int) -> str:
    """The name of a compiled part of a model: a saved model itself."""
    return f"part_{index}.tvmx"


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# A leading sign belongs to a target string ("+avx2"), not to the name of the feature.
FeatureName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


def host_architecture() -> str:
    """This machine's architecture by one name on all systems: macOS says arm64, Windows AMD64."""
    return architecture_of(platform.machine())


class Writable(Protocol):
    """What bytes can be written to."""

    def write(self, content: bytes, /) -> object:
        """Takes the next bytes."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class VersionsRecord(_Record):
    """The programs that made the file. ``python`` is for information only."""

    tvm_ext: str
    tvm: str
    tvm_ffi: str
    python: str

    @classmethod
    def installed(cls) -> "VersionsRecord":
        """The versions of this process."""
        return cls(
            tvm_ext=__version__,
            tvm=package_version("apache-tvm"),
            tvm_ffi=tvm_ffi.__version__,
            python=platform.python_version(),
        )


class TargetRecord(_Record):
    """The machine the code was made for.

    Attributes
    ----------
    name, kind, mtriple, mcpu : str
        The preset's name and what LLVM was told; empty where nothing was said.
    required_features : tuple[str, ...]
        LLVM names of the CPU features the code uses, without a sign: ``("avx2", "fma")``.
    system, machine : str
        ``Linux``, ``Darwin`` or ``Windows``; ``x86_64`` or ``aarch64``.
    """

    name: str
    kind: str
    mtriple: str = ""
    mcpu: str = ""
    required_features: tuple[FeatureName, ...] = ()
    system: str = Field(default_factory=platform.system)
    machine: str = Field(default_factory=host_architecture)


class PartRecord(_Record):
    """Digest and size in bytes of one member."""

    sha256: Sha256
    size: int = Field(ge=0)

    @classmethod
    def of(cls, content: bytes) -> "PartRecord":
        """The record of these bytes."""
        return cls(sha256=hashlib.sha256(content).hexdigest(), size=len(content))

    @classmethod
    def of_file(cls, file: IO[bytes], copy: Writable | None = None) -> "PartRecord":
        """The record of the rest of an open file, which is written to ``copy`` if that is given."""
        digest, size = hashlib.sha256(), 0
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            if copy is not None:
                copy.write(chunk)
        return cls(sha256=digest.hexdigest(), size=size)


class SpecializedRecord(_Record):
    """Inputs and outputs of a program for exact sizes beside that for any."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class ShardedRecord(_Record):
    """How a model is split over devices, each of which has a program of its own.

    Attributes
    ----------
    devices : int
        How many there are.
    inputs, outputs : tuple of int or None
        By position: the axis along which a device takes or gives a slice; None for all of it.
    programs : tuple of int
        By device, the number of its part; devices may share one.
    """

    devices: int = Field(ge=2)
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    programs: tuple[int, ...]


class Manifest(_Record):
    """Everything about a saved model but its code, weights and report."""

    format: Literal["tvm-ext model"] = FORMAT_NAME
    format_version: Literal[1, 2, 3] = FORMAT_VERSION
    versions: VersionsRecord
    created: AwareDatetime
    model_name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    target: TargetRecord
    parts: dict[str, PartRecord]
    specialized: tuple[SpecializedRecord, ...] = ()
    sharded: ShardedRecord | None = None

    def expected_members(self) -> tuple[str, ...]:
        """The members that a file of this format has beside the manifest, in order."""
        if self.format_version == FORMAT_VERSION:
            return PART_MEMBERS
        others = (HOST_MEMBER,) if self.format_version == HOST_FORMAT_VERSION else ()
        count = max(len(self.parts) - 1 - len(others), 0)
        return (*others, *map(part_member, range(count)), REPORT_MEMBER)


def package_version(package: str) -> str:
    """The installed version of a distribution; "unknown" where it has none, as a TVM built here."""
    # Not asked of the module: importing tvm brings the compiler, which loading does without.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"
