"""Compiled models kept on disk, by everything that they were compiled from.

An entry is a saved model under the name of its key. It is written whole or not at all, checked
whole before it is used, and lies in a folder that nobody else may write to: where anything is wrong
with it, or with the folder, the model is compiled as if there were no cache.
"""

import functools
import hashlib
import json
import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import tvm

import tvm_ext
from tvm_ext.artifact import VersionsRecord
from tvm_ext.artifact.archive import digest_of_sealed, read_seal
from tvm_ext.artifact.manifest import MANIFEST_MEMBER, Manifest
from tvm_ext.compiled_model import CompiledModel
from tvm_ext.compiler.backend import programs_of
from tvm_ext.compiler.stages import ModelSource
from tvm_ext.compiler.tuned_kernels import RecordsSource, record_folders
from tvm_ext.configs.progress import tell
from tvm_ext.errors import ConfigError, TvmExtError
from tvm_ext.hardware.cost_model import cost_model
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.tvm_compat import llvm_codegen
from tvm_ext.onnx_frontend.weights import file_digest, model_digest
from tvm_ext.passes.pipeline import STAGES, Pipeline
from tvm_ext.runtime import load
from tvm_ext.tir_schedules.backend import scheduling_of

# Environment variables: "off" for no cache, its folder, and how much it may hold.
SWITCH, FOLDER, LIMIT = "TVM_EXT_CACHE", "TVM_EXT_CACHE_DIR", "TVM_EXT_CACHE_GIB"
DEFAULT_GIBIBYTES = 4.0

_ENDING, _TEMPORARY = ".tvmx", ".tmp"
# A model that leaves room for fewer like it is not kept.
_LEAST_MODELS = 4
# An unfinished file of this age was left by a process that was killed.
_STALE_SECONDS = 3600.0


@dataclass(frozen=True)
class CacheEntry:
    """A compiled model in the cache.

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

    def manifest(self) -> Manifest | None:
        """What the file says of the model; None where it cannot be read."""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return Manifest.model_validate_json(archive.read(MANIFEST_MEMBER))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            return None

    def is_whole(self) -> bool:
        """Whether the file is what was written."""
        try:
            with self.path.open("rb") as file:
                seal = read_seal(file)
                return seal is not None and seal.digest == digest_of_sealed(file)
        except OSError:
            return False


class ProgramCache:
    """A folder of compiled models.

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
        if not path.is_file() or not self._is_private():
            return None
        try:
            model = load(path)
        except (TvmExtError, OSError):
            # Damaged, or of another version of TVM with the same name.
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return model if isinstance(model, CompiledModel) else None

    def keep(self, key: str, model: CompiledModel) -> None:
        """Writes a model; does nothing where it cannot be written, on a full disk for example, or
        is too large to keep others beside it.
        """
        if model.report.memory.weights_bytes > self.limit_bytes // _LEAST_MODELS:
            return
        with suppress(TvmExtError, OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_private():
                model.save(self._path(key))
                self._evict()

    def entries(self) -> list[CacheEntry]:
        """All entries, the one that was used last first."""
        found = []
        for path, status in self._files(_ENDING):
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
            tell(f"program {number} of {len(entries)}")
            # Another process may delete it in the meantime.
            if not entry.is_whole() and _deleted(entry.path):
                damaged.append(entry)
        return damaged

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_ENDING}"

    def _is_private(self) -> bool:
        """Whether nobody else may put a program there."""
        if not hasattr(os, "geteuid"):
            return self.folder.is_dir()
        try:
            status = self.folder.stat()
        except OSError:
            return False
        return status.st_uid == os.geteuid() and not status.st_mode & 0o022

    def _files(self, ending: str) -> Iterator[tuple[Path, os.stat_result]]:
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.suffix == ending:
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
        gibibytes = float(text) if text else DEFAULT_GIBIBYTES
    except ValueError as error:
        raise ConfigError(
            f"{LIMIT} is '{text}'; expected a number of GiB: set it to one, or leave it out"
        ) from error
    place = Path(folder) if folder else Path(platformdirs.user_cache_dir("tvm-ext")) / "programs"
    return ProgramCache(place, int(gibibytes * 2**30))


# What a program is compiled from, as a key.


def program_key(
    model: ModelSource,
    machine: MachineDescription,
    pipeline: Pipeline,
    input_shapes: Mapping[str, Sequence[int | str]] | None,
    records: RecordsSource,
    require_records: bool = False,
) -> str | None:
    """A key for all that decides what a compilation makes: hexadecimal digits.

    None where that is not known: the model cannot be read, is for a machine that is not a CPU, a
    pass, template or cost model that does not come with the package takes part, or the caller has
    set something in TVM's context of passes.
    """
    if programs_of(machine).device != "cpu" or not _is_all_ours(machine, pipeline):
        return None
    around = tvm.transform.PassContext.current()
    if around.instruments or around.disabled_pass or around.required_pass or len(around.config):
        return None
    folders = record_folders(records)
    try:
        recorded = _digest_of_files(path for folder in folders for path in _below(folder))
    except OSError:
        return None
    content = model_digest(model)
    if content is None:
        return None
    shapes = input_shapes or {}
    facts = {
        "model": content,
        "records": recorded,
        "versions": VersionsRecord.installed().model_dump(),
        "llvm": llvm_codegen.llvm_version_major(),
        "sources": _digest_of_sources(),
        "machine": [type(machine).__name__, machine.model_dump(mode="json")],
        "opt_level": pipeline.opt_level,
        "require_records": require_records,
        "passes": [
            [stage, step.entry.name, step.options, step.skipped]
            for stage in STAGES
            for step in getattr(pipeline, stage)
        ],
        "shapes": sorted((name, [str(size) for size in sizes]) for name, sizes in shapes.items()),
        "environment": sorted(
            (name, value)
            for name, value in os.environ.items()
            if name.startswith("TVM_EXT_") and name not in (SWITCH, FOLDER, LIMIT)
        ),
    }
    text = json.dumps(facts, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("utf-8", errors="surrogateescape")).hexdigest()


def _is_all_ours(machine: MachineDescription, pipeline: Pipeline) -> bool:
    """Whether all code that takes part is known by the package's sources and TVM's version."""
    scheduling = scheduling_of(machine)
    templates = (*scheduling.templates, *scheduling.rules, *scheduling.fallbacks)
    entries = [step.entry for stage in STAGES for step in getattr(pipeline, stage)]
    classes = [type(one) for one in (machine, cost_model(machine), *templates)]
    return all(entry.source in ("built-in", "tvm") for entry in entries) and all(
        cls.__module__.partition(".")[0] == tvm_ext.__name__ for cls in classes
    )


def _digest_of_files(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode("utf-8", errors="replace"))
        digest.update(file_digest(path))
    return digest.hexdigest()


def _below(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise NotADirectoryError(folder)
    return sorted(path for path in folder.rglob("*") if path.is_file())


@functools.cache
def _digest_of_sources() -> str:
    """Of all files of the package: during development these change and its version does not."""
    digest = hashlib.sha256()
    root = os.path.dirname(tvm_ext.__file__)
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = os.path.join(folder, name)
            digest.update(os.path.relpath(path, root).encode("utf-8", errors="replace"))
            with open(path, "rb") as file:
                digest.update(file.read())
    return digest.hexdigest()
