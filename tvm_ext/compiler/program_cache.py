"""Compiled models, and the code of single kernels, kept on disk by all that they were made from.

An entry is a saved model or an object file under the name of its key. It is written whole or not at
all, checked whole before it is used, and lies in a folder that nobody else may write to: where
anything is wrong with it, or with the folder, the model is compiled as if there were no cache.
"""

import functools
import hashlib
import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import tvm

from tvm_ext.artifact.archive import digest_of_sealed, read_artifact, read_seal
from tvm_ext.artifact.manifest import (
    MANIFEST_MEMBER,
    Manifest,
    VersionsRecord,
    host_architecture,
    package_version,
)
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.backend import no_gibibytes, programs_of, target_record
from tvm_ext.compiler.specialize import Specialization
from tvm_ext.compiler.stages import ModelSource
from tvm_ext.compiler.tuned_kernels import RecordsSource, record_folders
from tvm_ext.configs.atomic_file import replacing
from tvm_ext.configs.progress import tell
from tvm_ext.errors import ConfigError, TvmExtError
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.cpu.system import host_cpu_features
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.tvm_compat import llvm_codegen
from tvm_ext.onnx_frontend.weights import file_digest, model_digest
from tvm_ext.passes.pipeline import STAGES, Pipeline
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.cpu.batch_loop import BatchLoop

# Environment variables: "off" for no cache, its folder, and how much it may hold.
SWITCH, FOLDER, LIMIT = "TVM_EXT_CACHE", "TVM_EXT_CACHE_DIR", "TVM_EXT_CACHE_GIB"
_DEFAULT_GIBIBYTES = 4.0

_PACKAGE = __name__.partition(".")[0]
_ENDING, _OBJECT_ENDING, _TEMPORARY = ".tvmx", ".o", ".tmp"
# In front of a kernel's object: of its key and of the object.
_DIGEST_BYTES = hashlib.sha256().digest_size
# A model that leaves room for fewer like it is not kept.
_LEAST_MODELS = 4
# An unfinished file of this age was left by a process that was killed.
_STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class CacheEntry:
    """A compiled model, or an object with the code of a kernel, in the cache.

    Attributes
    ----------
    path : Path
        Its file.
    size : int
        In bytes.
    used : float
        When it was written or last used, in seconds since 1970.
    """

    path: Path
    size: int
    used: float

    @property
    def is_kernel(self) -> bool:
        """Whether it is an object with the code of a kernel, and no model."""
        return self.path.suffix == _OBJECT_ENDING

    def manifest(self) -> Manifest | None:
        """What the file says of the model; None where it cannot be read."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return Manifest.model_validate_json(archive.read(MANIFEST_MEMBER))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            return None


def _is_whole(path: Path) -> bool:
    """Whether a file is what was written, of whatever format."""
    if path.suffix == _OBJECT_ENDING:
        return _whole_object(path) is not None
    try:
        with path.open("rb") as file:
            seal = read_seal(file)
            return seal is not None and seal.digest == digest_of_sealed(file)
    except OSError:
        return False


def _whole_object(path: Path) -> bytes | None:
    """The object in a file; None where it is not what was written under this name."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if digest == _object_digest(path.stem, code) else None


def _object_digest(key: str, code: bytes) -> bytes:
    return hashlib.sha256(key.encode() + code).digest()


class ProgramCache:
    """A folder of compiled models, and of objects with the code of a kernel each.

    Many processes may use one at a time: entries appear whole, and one that is deleted while it is
    in use stays in use.

    Parameters
    ----------
    folder : Path
        Made when the first entry is written.
    limit_bytes : int
        What all entries together may take.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    def find(self, key: str) -> CompiledModel | None:
        """The model under ``key``; None where there is none that is whole and ours."""
        path = self._path(key)
        if not path.is_file() or not self.is_private():
            return None
        try:
            model = CompiledModel.from_artifact(read_artifact(path))
        except (TvmExtError, OSError):
            if not _is_whole(path):
                _deleted(path)
            return None
        with suppress(OSError):
            os.utime(path)
        return model

    def keep(self, key: str, model: CompiledModel) -> None:
        """Writes a model; does nothing where it cannot be written, on a full disk for example, or
        is too large to keep others beside it.
        """
        if model.report.memory.weights_bytes > self.limit_bytes // _LEAST_MODELS:
            return
        with suppress(TvmExtError, OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.is_private():
                model.save(self._path(key))
                self._evict()

    def find_object(self, key: str) -> bytes | None:
        """The object under ``key``; None where there is none that is whole and ours."""
        path = self._path(key, _OBJECT_ENDING)
        if not path.is_file() or not self.is_private():
            return None
        code = _whole_object(path)
        if code is None:
            _deleted(path)
            return None
        with suppress(OSError):
            os.utime(path)
        return code

    def keep_objects(self, codes: Mapping[str, bytes]) -> None:
        """Writes objects by their keys, as far as they can be written."""
        if not codes:
            return
        with suppress(TvmExtError, OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.is_private():
                for key, code in codes.items():
                    # What a power cut leaves of one is no whole object.
                    with replacing(self._path(key, _OBJECT_ENDING), is_durable=False) as file:
                        file.write(_object_digest(key, code) + code)
                self._evict()

    def entries(self) -> list[CacheEntry]:
        """All programs and kernels, the one that was used last first."""
        found = []
        for path, status in self._files(_ENDING, _OBJECT_ENDING):
            found.append(CacheEntry(path, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (-entry.used, entry.path.name))

    def clear(self) -> list[CacheEntry]:
        """Deletes all entries; returns them."""
        return [entry for entry in self.entries() if _deleted(entry.path)]

    def delete_damaged(self) -> list[CacheEntry]:
        """Reads all entries whole, and deletes those that are not as they were written."""
        damaged = []
        entries = self.entries()
        for number, entry in enumerate(entries, start=1):
            tell(f"entry {number} of {len(entries)}")
            # Another process may delete it in the meantime.
            if not _is_whole(entry.path) and _deleted(entry.path):
                damaged.append(entry)
        return damaged

    def _path(self, key: str, ending: str = _ENDING) -> Path:
        return self.folder / f"{key}{ending}"

    def is_private(self) -> bool:
        """Whether the folder is there and nobody else may put a program into it."""
        if not hasattr(os, "geteuid"):
            return self.folder.is_dir()
        try:
            status = self.folder.stat()
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def _files(self, *endings: str) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.suffix in endings:
                    with suppress(OSError):
                        yield path, path.stat()

    def _evict(self) -> None:
        """Deletes what was used longest ago until the rest may stay, and unfinished files."""
        total = 0
        for entry in self.entries():
            total += entry.size
            if total > self.limit_bytes:
                _deleted(entry.path)
        for path, status in self._files(_TEMPORARY):
            if time.time() - status.st_mtime > _STALE_SECONDS:
                _deleted(path)


def _deleted(path: Path) -> bool:
    with suppress(OSError):
        path.unlink()
        return True
    return False


def program_cache() -> ProgramCache | None:
    """The user's cache; None where it is turned off.

    Raises
    ------
    ConfigError
        ``LIMIT`` holds no number.
    """
    if os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "no", "false"):
        return None
    folder = os.environ.get(FOLDER, "").strip()
    text = os.environ.get(LIMIT, "").strip()
    try:
        limit = int(float(text or _DEFAULT_GIBIBYTES) * 2**30)
    except (ValueError, OverflowError) as error:
        raise ConfigError(no_gibibytes(LIMIT, text)) from error
    place = Path(folder) if folder else Path(platformdirs.user_cache_dir("tvm-ext")) / "programs"
    # Without a home there is no place.
    return ProgramCache(place, limit) if folder or place.is_absolute() else None


# What a program is compiled from, as a key.


def program_key(
    model: ModelSource,
    machine: MachineDescription,
    pipeline: Pipeline,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    records: RecordsSource,
    require_records: bool = False,
    specialize: Sequence[Specialization] = (),
) -> str | None:
    """A key for all that decides what a compilation makes: hexadecimal digits.

    None where that is not known: the model or a record cannot be read, the program is for a GPU or
    a CPU that this one is not, what does not come with the package takes part (a pass, an option of
    one, a template, a cost model), or the caller has set something in TVM's context of passes.
    """
    versions = code_versions()
    if not _runs_here(machine) or not is_all_ours(machine, pipeline) or versions is None:
        return None
    around = tvm.transform.PassContext.current()
    if around.instruments or around.disabled_pass or around.required_pass or len(around.config):
        return None
    environment = sorted(item for item in os.environ.items() if item[0].startswith("TVM_EXT_"))
    shapes = input_shapes or {}
    try:
        facts: dict[str, Any] = {
            "model": model_digest(model),
            "records": list(map(_digest_of_folder, record_folders(records))),
            **versions,
            "machine": [type(machine).__name__, machine.model_dump(mode="json")],
            "opt_level": pipeline.opt_level,
            "require_records": require_records,
            "names_states": pipeline.names_states,
            "passes": [
                [stage, step.entry.name, step.options, step.skipped]
                for stage in STAGES
                for step in getattr(pipeline, stage)
            ],
            "shapes": sorted((name, list(map(repr, sizes))) for name, sizes in shapes.items()),
            "specialize": [sorted((n, repr(v)) for n, v in one.items()) for one in specialize],
            "environment": [item for item in environment if item[0] not in (SWITCH, FOLDER, LIMIT)],
        }
        text = json.dumps(facts, sort_keys=True)
    except (OSError, TypeError, ValueError, AttributeError):
        # What is wrong with an argument is said where it is used.
        return None
    known = facts["model"] is not None and None not in facts["records"]
    return hashlib.sha256(text.encode("utf-8", errors="replace")).hexdigest() if known else None


def _runs_here(machine: MachineDescription) -> bool:
    """Whether it is a CPU whose programs this one runs: others' cannot be loaded."""
    if programs_of(machine).device != "cpu":
        return False
    target = target_record(machine)
    return target.machine == host_architecture() and host_cpu_features().issuperset(
        target.required_features
    )


def is_all_ours(machine: MachineDescription, pipeline: Pipeline) -> bool:
    """Whether all code that takes part is known by the package's sources and TVM's version."""
    scheduling = scheduling_of(machine)
    templates = [*scheduling.templates, *scheduling.rules, *scheduling.fallbacks]
    templates += [one.template for one in templates if isinstance(one, BatchLoop)]
    entries = [step.entry for stage in STAGES for step in getattr(pipeline, stage)]
    classes = [type(one) for one in (machine, cost_model(machine), *templates)]
    return all(entry.source in ("built-in", "tvm") for entry in entries) and all(
        cls.__module__.partition(".")[0] == _PACKAGE for cls in classes
    )


def code_versions() -> dict[str, Any] | None:
    """Of all that makes code: this package's own files, and others' packages by their versions.

    None where a file cannot be read.
    """
    return None if _SOURCES is None else {"versions": _versions(), "sources": _SOURCES}


@functools.cache
def _versions() -> dict[str, str]:
    """Of what makes programs beside the package itself."""
    names = ("ml_dtypes", "numpy", "onnx", "onnx-ir", "onnxscript", "scipy")
    return {
        **VersionsRecord.installed().model_dump(),
        **{name: package_version(name) for name in names},
        "llvm": str(llvm_codegen.llvm_version_major()),
    }


def _digest_of_folder(folder: Path) -> str | None:
    """Of the names and contents of all files in it; None where there are none."""
    digest = hashlib.sha256()
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in paths:
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name}\0".encode("utf-8", errors="replace") + file_digest(path))
    return digest.hexdigest() if paths else None


def _digest_of_sources() -> str | None:
    """Of all files of the package: during development these change and its version does not.

    None where one cannot be read.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    try:
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for path in (Path(folder, name) for name in sorted(names)):
                name = path.relative_to(root).as_posix()
                digest.update(name.encode("utf-8", errors="replace"))
                digest.update(path.read_bytes())
    except OSError:
        return None
    return digest.hexdigest()


# When the code is loaded: what is written to the files later is not what runs.
_SOURCES = _digest_of_sources()
