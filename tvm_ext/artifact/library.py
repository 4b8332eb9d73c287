"""Turns a compiled program into the bytes of a shared library, and such bytes into a module.

The weights pass through LLVM as one constant, so linking is quick: about a second for 90 MB.
"""

import contextlib
import ctypes
import errno
import functools
import io
import mmap
import os
import shutil
import struct
import sys
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from tvm_ext.artifact.manifest import LIBRARY_MEMBER, PartRecord, Writable
from tvm_ext.artifact.program_in_library import (
    ProgramInLibrary,
    bytes_of_tables,
    find_program,
)
from tvm_ext.configs.progress import tell
from tvm_ext.errors import ArtifactError
from tvm_ext.hardware.cpu.linker import Linker, find_compiler
from tvm_ext.hardware.cpu.threads import thread_pool

if TYPE_CHECKING:
    from tvm import relax

# Of the virtual machine, include/tvm/runtime/memory/memory_manager.h: buffers are kept for reuse.
_POOLED_ALLOCATOR = 2

# Of a library, include/tvm/ffi/extra/module.h: what is serialised in it, behind its length.
_WEIGHTS_AND_PROGRAM = "__tvm_ffi__library_bin"


# For the code of a program, beside its weights.
_ROOM_FOR_CODE = 4 << 20


def export_library_bytes(executable: Any, weights_bytes: int = 0) -> bytes:
    """Link a compiled program into a shared library.

    Parameters
    ----------
    executable : tvm.relax.VMExecutable
        Result of ``tvm.compile`` or ``relax.build``. Neither network nor GPU is needed.
    weights_bytes : int
        What its constants take.

    Returns
    -------
    bytes
        The library, for ``write_artifact``. In between, about three times as much lies in the
        folder for temporary files. The same program gives the same bytes, but other ones after it
        has run: a virtual machine adds an empty memory scope per constant to its executable, and
        saving that makes TVM print a warning line ("Scope Saving") for each.

    Raises
    ------
    ArtifactError
        There is no compiler, linking failed, or the temporary folder is full.
    """
    tell("shared library")
    linker = Linker(find_compiler())
    try:
        with tempfile.TemporaryDirectory(prefix="tvmx-") as folder:
            # On a full disk, LLVM ends the process.
            if shutil.disk_usage(folder).free < 2 * weights_bytes + _ROOM_FOR_CODE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            output = Path(folder) / "model.so"
            executable.export_library(str(output), fcompile=linker, workspace_dir=folder)
            return output.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"cannot link the model: {_reason(error)}; expected a compiler for the model's "
            "target and room in the temporary folder: set CXX to one (for another architecture a "
            "cross compiler such as aarch64-linux-gnu-g++), TMPDIR to a folder with free space"
        ) from error


# What zipfile raises, besides OSError, on archives that are not as it expects.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    EOFError,
    KeyError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


# The header of a member of a ZIP archive ends in the lengths of the name and of what else follows.
_MEMBER_HEADER = struct.Struct("<26x2H")
_PIECE_BYTES = 1 << 20


class OpenLibrary:
    """A library in a part of an open file, or in memory.

    Parameters
    ----------
    source : int or bytes
        The file's descriptor, or the library itself.
    begin, size : int
        The part of the file.
    """

    def __init__(self, source: int | bytes, begin: int, size: int) -> None:
        self._source = source
        self._begin = begin
        self.size = size

    def find(self, sought: bytes) -> int:
        """The first place of these bytes; -1 where they are not in it."""
        if isinstance(self._source, bytes):
            return self._source.find(sought)
        before, at = b"", 0
        while piece := os.pread(self._source, min(_PIECE_BYTES, self.size - at), self._begin + at):
            joined = before + piece
            if (place := joined.find(sought)) >= 0:
                return at - len(before) + place
            at += len(piece)
            before = joined[1 - len(sought) :]
        return -1

    def read_into(self, place: int, memory: memoryview) -> None:
        """Fills ``memory`` with what stands from ``place`` on; raises OSError if it ends before."""
        if isinstance(self._source, bytes):
            with memoryview(self._source) as content:
                memory[:] = content[place : place + len(memory)]
            return
        done = 0
        while done < len(memory):
            with memory[done:] as rest:
                read = os.preadv(self._source, [rest], self._begin + place + done)
            if read == 0:
                raise OSError("the file became shorter while it was read")
            done += read


class LibraryFile:
    """The library in a saved model, which is read when it is asked for: it may be large.

    The file is kept open, so that it may be replaced or removed meanwhile.

    Parameters
    ----------
    path : Path
        The saved model, for messages.
    file : BinaryIO
        The same, open.
    record : PartRecord
        Digest and size of the library by the file's manifest.
    """

    def __init__(self, path: Path, file: BinaryIO, record: PartRecord) -> None:
        self._path = path
        self._record = record
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> bytes:
        """The library; raises ArtifactError as ``copy_to``."""
        with io.BytesIO() as copy:
            self.copy_to(copy)
            return copy.getvalue()

    def copy_to(self, file: Writable) -> None:
        """Writes the library to an open file; one thread at a time.

        Raises
        ------
        ArtifactError
            It does not have the checksum that the manifest names.
        OSError
            The file cannot be written.
        """
        if self._copied_record(file) != self._record:
            raise self._damaged()

    @contextlib.contextmanager
    def opened(self) -> Iterator["OpenLibrary"]:
        """The library in the file, to look into before it is copied.

        Raises ArtifactError at the end if the file was written to meanwhile: what was read then
        need not be what had the checksum.
        """
        before = self._last_change()
        yield OpenLibrary(self._descriptor, self._begin(), self._record.size)
        if self._last_change() != before:
            raise self._damaged()

    def _last_change(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def _begin(self) -> int:
        """Where the library begins in the file, behind the header of its member."""
        with os.fdopen(os.dup(self._descriptor), "rb") as opened:
            try:
                with zipfile.ZipFile(opened) as archive:
                    at = archive.getinfo(LIBRARY_MEMBER).header_offset
            except ZIP_ERRORS as error:
                # It was whole when it was opened: something has written to it since.
                raise self._damaged() from error
        header = os.pread(self._descriptor, _MEMBER_HEADER.size, at)
        if len(header) < _MEMBER_HEADER.size:
            raise self._damaged()
        return at + _MEMBER_HEADER.size + sum(_MEMBER_HEADER.unpack(header))

    def _damaged(self) -> ArtifactError:
        return ArtifactError(
            f"cannot load {str(self._path)!r}: the file is damaged: {LIBRARY_MEMBER} does not "
            "have the checksum that the manifest names; expected it as it was saved: copy it "
            "again, or save the model again"
        )

    def _copied_record(self, file: Writable) -> PartRecord | None:
        with os.fdopen(os.dup(self._descriptor), "rb") as opened:
            try:
                with zipfile.ZipFile(opened) as archive, archive.open(LIBRARY_MEMBER) as member:
                    return PartRecord.of_file(member, file)
            except ZIP_ERRORS:
                # It was whole when it was opened: something has written to it since.
                return None


def load_library(library: bytes | LibraryFile) -> tvm_ffi.Module:
    """Load a shared library into this process.

    The library is written into a private temporary folder, which goes as soon as it is loaded: the
    process keeps what it has mapped. Large weights are not written there; they are read into the
    memory of the program. At no time are they in memory twice.

    Raises
    ------
    ArtifactError
        The system's loader refuses the library, it cannot be written, or it is not a program.
    """
    load_runtime()
    with contextlib.ExitStack() as stack:
        if isinstance(library, LibraryFile):
            opened = stack.enter_context(library.opened())
        else:
            opened = OpenLibrary(library, 0, len(library))
        module = _loaded_apart(library, opened) or _loaded_as_it_is(library)
    if not module.implements_function("vm_load_executable", query_imports=True):
        raise ArtifactError(
            "cannot load the model's code: it is not a program of TVM's virtual machine; expected "
            "a library that this package linked: save the model again"
        )
    thread_pool.share_with(module)
    return module


def _loaded_as_it_is(library: bytes | LibraryFile) -> tvm_ffi.Module:
    """By TVM alone, which has the weights in memory four times for a moment."""
    with _temporary_library(library) as path:
        module = _code_at(path)
        _give_back_mapped_weights(path)
    return module


def _loaded_apart(library: bytes | LibraryFile, opened: OpenLibrary) -> tvm_ffi.Module | None:
    """The code, the program and the weights one by one; None where TVM has to do it."""
    if sys.platform != "linux":
        return None
    try:
        found = find_program(opened.find, opened.read_into, opened.size)
        if found is None:
            return None
        with _temporary_library(library, found) as path:
            code = _code_at(path)
        program = found.load(code, opened.read_into)
        if program is not None:
            found.fill_weights(_virtual_machine(program), opened.read_into)
        return program
    except RuntimeError:
        # A machine for it cannot be made. The first run, which makes one as well, says why.
        return None
    except OSError as error:
        raise ArtifactError(
            f"cannot load the model's code: {_reason(error)}; expected a file that can be read: "
            "save the model again"
        ) from error


def _code_at(path: Path) -> tvm_ffi.Module:
    try:
        return tvm_ffi.load_module(path)
    except RuntimeError as error:
        raise ArtifactError(
            f"cannot load the model's code: {_reason(error)}; expected a library for this "
            "system, in a temporary folder that allows execution: set TMPDIR to such a "
            "folder, or compile the model again on this machine"
        ) from error


def _give_back_mapped_weights(path: Path) -> None:
    """Lets go of the pages of a loaded library that hold the weights, which TVM has copied."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(str(path))
    try:
        begin = ctypes.addressof(ctypes.c_char.in_dll(library, _WEIGHTS_AND_PROGRAM))
    except ValueError:
        return
    end = begin + ctypes.c_uint64.from_address(begin).value
    first, last = (begin // mmap.PAGESIZE + 1) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        pages = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
        ctypes.CDLL(None).madvise(*pages, mmap.MADV_DONTNEED)


@functools.cache
def load_runtime() -> None:
    """Loads TVM's runtime, which knows virtual machines, without the compiler behind ``tvm``."""
    spec = find_spec("tvm")
    folders = [Path(folder) / "lib" for folder in (spec and spec.submodule_search_locations) or ()]
    for name in ("tvm_runtime", "tvm_runtime_extra"):
        try:
            load_lib_ctypes("tvm", name, "RTLD_GLOBAL", extra_lib_paths=folders)
        except (OSError, RuntimeError):
            # A build of TVM whose libraries lie elsewhere; it knows where.
            import_module("tvm")


class _WithoutProgram:
    """A file to which a library is written but for its program, which leaves a hole."""

    def __init__(self, file: BinaryIO, program: ProgramInLibrary) -> None:
        self._file = file
        self._program = program
        self._place = 0

    def write(self, content: bytes) -> int:
        """Takes the next bytes of the library."""
        place, end = self._place, self._place + len(content)
        self._write(place, content[: max(self._program.begin - place, 0)])
        behind = max(self._program.end, place)
        self._write(behind, content[behind - place :])
        self._place = end
        return len(content)

    def _write(self, place: int, content: bytes) -> None:
        if content:
            self._file.seek(place)
            self._file.write(content)

    def finish(self) -> None:
        """Says to TVM that there is no program."""
        self._file.seek(self._program.begin)
        self._file.write(self._program.replacement)


@contextlib.contextmanager
def _temporary_library(
    library: bytes | LibraryFile, without: ProgramInLibrary | None = None
) -> Iterator[Path]:
    try:
        # A system that locks loaded libraries keeps the folder; that must not fail the load.
        folder = tempfile.TemporaryDirectory(prefix="tvmx-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _unwritable(error) from error
    with folder:
        path = Path(folder.name) / "model.so"
        try:
            with path.open("wb") as file:
                _write_library(library, file, without)
        except OSError as error:
            raise _unwritable(error) from error
        yield path


def _write_library(
    library: bytes | LibraryFile, file: BinaryIO, without: ProgramInLibrary | None
) -> None:
    target = file if without is None else _WithoutProgram(file, without)
    if isinstance(library, LibraryFile):
        library.copy_to(target)
    else:
        target.write(library)
    if isinstance(target, _WithoutProgram):
        target.finish()


def _unwritable(error: OSError) -> ArtifactError:
    return ArtifactError(
        f"cannot unpack the model's code: {_reason(error)}; expected a temporary folder with "
        "free space: set TMPDIR to one"
    )


def _reason(error: Exception) -> str:
    """What the system or the compiler says, which is about the machine; TVM's texts are not."""
    own = error.strerror or str(error) if isinstance(error, OSError) else ""
    return (own.strip().splitlines() or ["its code cannot be written or read"])[0].strip()


# A compiled program as a library that can be saved, and as a module that can be run.


class ProgramModule:
    """One program, linked once and loaded once, for all threads.

    What runs is always loaded from the library: a virtual machine writes a memory scope for each
    constant into the executable that it runs, and TVM warns of each when such a one is saved.
    """

    def __init__(
        self, program: "relax.VMExecutable | bytes | LibraryFile", weights_bytes: int = 0
    ) -> None:
        self._program = program
        self._weights_bytes = weights_bytes
        self._lock = threading.Lock()
        self._module: tvm_ffi.Module | None = None

    def library(self) -> bytes:
        """The program as a shared library; raises ArtifactError where it cannot be linked."""
        with self._lock:
            linked = self._linked()
            return linked.read() if isinstance(linked, LibraryFile) else linked

    def opened(self) -> tvm_ffi.Module:
        """The module; raises ArtifactError where it cannot be linked, or the system refuses it."""
        with self._lock:
            if self._module is None:
                self._module = load_library(self._linked())
            return self._module

    def table_bytes(self) -> int | None:
        """What its virtual machine takes beside weights; None for one that is not loaded."""
        with self._lock:
            linked = self._linked() if self._module is not None else None
        if not isinstance(linked, bytes):
            return None
        opened = OpenLibrary(linked, 0, len(linked))
        return bytes_of_tables(opened.find, opened.read_into, opened.size)

    def new_machine(self) -> tvm_ffi.Module:
        """A virtual machine of TVM for this program on the CPU; raises ArtifactError as above."""
        module = self.opened()
        with self._lock:
            return _virtual_machine(module)

    def _linked(self) -> bytes | LibraryFile:
        if not isinstance(self._program, bytes | LibraryFile):
            self._program = export_library_bytes(self._program, self._weights_bytes)
        return self._program


def _virtual_machine(module: tvm_ffi.Module) -> tvm_ffi.Module:
    try:
        return _initialised(module)
    except RuntimeError:
        # The program calls a function that TVM has in Python (NonZero, Unique).
        import_module("tvm.relax")
        return _initialised(module)


def _initialised(module: tvm_ffi.Module) -> tvm_ffi.Module:
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](tvm_ffi.DLDeviceType.kDLCPU, 0, _POOLED_ALLOCATOR)
    return machine
