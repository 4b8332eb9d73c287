"""The program of TVM's virtual machine in a library, read without copies of its weights.

TVM maps the library, copies what is in it twice, and reads the weights from the second copy: for a
moment they are in memory four times. Here the library is loaded without its program. TVM then
reads the program from memory in which the weights are pages that nobody wrote, which take no memory
and read as zeros. That makes weights of the right shapes, and these are read from the file into
their places.

The forms are those of TVM 0.27: ``ProcessLibraryBin`` in tvm-ffi's library_module.cc,
``VMExecutable`` in src/runtime/vm/executable.cc and ``SaveDLTensor`` in include/tvm/runtime. A
program that does not have them is left to TVM.
"""

import ctypes
import mmap
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm_ffi
from tvm_ffi.libinfo import find_libtvm_ffi

from tvm_ext.artifact.huge_pages import use_huge_pages

# Fills a buffer with what is in the library from a place on; raises OSError where it cannot.
ReadInto: TypeAlias = Callable[[int, memoryview], None]

_KIND = b"relax.VMExecutable"
# Two modules, the first of which imports the second, and then what the first is: lengths, each
# ahead of what it counts.
_START = struct.pack("<7Q", 3, 0, 1, 1, 1, 1, len(_KIND)) + _KIND
# One module, which is the library itself.
_LIBRARY_ALONE = struct.pack("<4Q", 2, 0, 0, 0) + struct.pack("<Q", 4) + b"_lib"

_MAGIC, _MAGIC_WITH_SCOPES = 0xD225DE2F4214151D, 0xD225DE2F4214151E
_VERSION = b"0.14"
_TENSOR_MAGIC = 0xDD5E40F096B4A13F
# Of include/tvm/ffi/c_api.h.
_INT, _FLOAT, _DTYPE, _STRING, _BYTES, _SHAPE, _TENSOR = 1, 3, 5, 65, 66, 69, 70
_SIZES_OF_PLAIN = {_INT: 8, _FLOAT: 8, _DTYPE: 4}

# Of the virtual machine, include/tvm/runtime/vm/bytecode.h.
_CALL, _RETURN = 1, 2
_CONSTANT = 2 << 56
_PACKED_FUNCTION, _FUNCTION = 0, 1
# The function that is added to the program, and what it calls.
WEIGHTS_FUNCTION = "tvm_ext_weights"
_MAKE_ARRAY = b"ffi.Array"

# Smaller constants are copied as they are: their pages hold other things as well.
_LARGE_BYTES = 1 << 16
_READ_AHEAD = 1 << 16
_MOST_AT_ONCE = 1 << 20


class _OtherFormError(Exception):
    """The program does not have the form that is known here."""


@dataclass(frozen=True)
class _Piece:
    """A part of the program that TVM reads: bytes, or what is in the library, or zeros."""

    length: int
    content: bytes | None = None
    place: int | None = None


@dataclass(frozen=True)
class ProgramInLibrary:
    """Where a library holds its program.

    Attributes
    ----------
    begin, end : int
        The bytes of the library that hold it, as a module that TVM would load with the library.
    weights : tuple of (int, int)
        Of each large constant the place of its values in the library, and their bytes.
    pieces : tuple
        The program for TVM to read, without the values of the large constants.
    table_bytes : int
        What TVM makes of it in memory, beside the values of constants.
    """

    begin: int
    end: int
    weights: tuple[tuple[int, int], ...]
    pieces: tuple[_Piece, ...]
    table_bytes: int = 0

    @property
    def replacement(self) -> bytes:
        """What stands at ``begin`` in a library without its program."""
        return struct.pack("<Q", len(_LIBRARY_ALONE)) + _LIBRARY_ALONE

    def load(self, library: tvm_ffi.Module, read_into: ReadInto) -> tvm_ffi.Module | None:
        """The program, which calls the kernels of ``library``; None where TVM refuses it.

        Its large constants are zeros until ``fill_weights``. Raises OSError where the library
        cannot be read.
        """
        size = sum(piece.length for piece in self.pieces)
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as region:
            # One byte that is written would fill two MiB.
            with suppress(OSError, AttributeError):
                region.madvise(mmap.MADV_NOHUGEPAGE)
            self._write(memoryview(region), read_into)
            program = _loaded(region, size)
        if program is not None:
            program.import_module(library)
        return program

    def _write(self, memory: memoryview, read_into: ReadInto) -> None:
        with memory:
            at = 0
            for piece in self.pieces:
                part = memory[at : at + piece.length]
                if piece.content is not None:
                    part[:] = piece.content
                elif piece.place is not None:
                    read_into(piece.place, part)
                part.release()
                at += piece.length

    def fill_weights(self, machine: tvm_ffi.Module, read_into: ReadInto) -> None:
        """Reads the large constants, which all machines of a program share, into their places."""
        tensors = machine[WEIGHTS_FUNCTION]()
        lengths = (length for _, length in self.weights)
        use_huge_pages((one.data_ptr(), n) for one, n in zip(tensors, lengths, strict=True))
        for tensor, (place, length) in zip(tensors, self.weights, strict=True):
            values = (ctypes.c_ubyte * length).from_address(tensor.data_ptr())
            with memoryview(values).cast("B") as memory:
                read_into(place, memory)


def find_program(
    find: Callable[[bytes], int], read_into: ReadInto, size: int
) -> ProgramInLibrary | None:
    """Where a library holds its program; None for one of another form, or with small constants.

    Parameters
    ----------
    find : callable
        The first place of these bytes in the library; below zero where they are not in it.
    read_into : callable
        Reads from the library; raises OSError where that fails.
    size : int
        The bytes of the library.
    """
    found = _found(find, read_into, size)
    return found if found is not None and found.weights else None


def bytes_of_tables(find: Callable[[bytes], int], read_into: ReadInto, size: int) -> int | None:
    """What TVM makes in memory of the program of a library, beside the values of constants.

    They are the tables of functions, constants and instructions of one virtual machine. None for a
    program of another form. The parameters are those of ``find_program``.
    """
    found = _found(find, read_into, size)
    return None if found is None else found.table_bytes


def _found(find: Callable[[bytes], int], read_into: ReadInto, size: int) -> ProgramInLibrary | None:
    place = find(_START) - 8
    if place < 0:
        return None
    try:
        return _program_at(_Reader(read_into, place, size), place)
    except (_OtherFormError, struct.error):
        return None


class _Reader:
    """Reads numbers and texts of a library one behind the other."""

    def __init__(self, read_into: ReadInto, place: int, size: int) -> None:
        self._read_into = read_into
        self._size = size
        self._kept, self._kept_from = b"", 0
        self.place = place

    def take(self, length: int) -> bytes:
        """The next bytes."""
        self._check(length)
        offset = self.place - self._kept_from
        if offset < 0 or offset + length > len(self._kept):
            ahead = bytearray(min(max(length, _READ_AHEAD), self._size - self.place))
            self._read_into(self.place, memoryview(ahead))
            self._kept, self._kept_from, offset = bytes(ahead), self.place, 0
        self.place += length
        return self._kept[offset : offset + length]

    def skip(self, length: int) -> None:
        """Goes on behind the next bytes."""
        self._check(length)
        self.place += length

    def numbers(self, form: str) -> tuple[int, ...]:
        """The next numbers, in a form of ``struct``."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")))

    def count(self) -> int:
        """The next number of eight bytes."""
        return self.numbers("Q")[0]

    def text(self) -> bytes:
        """The next text, behind its length."""
        length = self.count()
        if length > _MOST_AT_ONCE:
            raise _OtherFormError
        return self.take(length)

    def _check(self, length: int) -> None:
        if length < 0 or length > self._size - self.place:
            raise _OtherFormError


def _program_at(reader: _Reader, begin: int) -> ProgramInLibrary:
    end = begin + 8 + reader.count()
    reader.skip(len(_START))
    size = reader.count()
    first = reader.place
    with_scopes = _read_header(reader)
    functions_at = reader.place
    functions = reader.count()
    tables = sum(_read_function(reader) for _ in range(functions))
    functions_end = reader.place
    if with_scopes and reader.count() != 0:
        raise _OtherFormError
    weights, of_constants = _read_constants(reader)
    constants_end = reader.place
    instructions = reader.count()
    offsets_at = reader.place
    reader.skip(8 * instructions)
    words = reader.count()
    words_at = reader.place
    reader.skip(8 * words)
    if reader.place != first + size or reader.text() != b"_lib" or reader.place != end:
        raise _OtherFormError
    added = _added_functions(functions, instructions)
    code = _added_code(functions, [number for number, _, _ in weights])
    pieces = (
        _copied(first, functions_at),
        _written(struct.pack("<Q", functions + 2)),
        _copied(functions_at + 8, functions_end),
        _written(added),
        *_without_weights(functions_end, constants_end, weights),
        _written(struct.pack("<Q", instructions + 2)),
        _copied(offsets_at, offsets_at + 8 * instructions),
        _written(struct.pack("<2q", words, words + len(code) - 2)),
        _written(struct.pack("<Q", words + len(code))),
        _copied(words_at, words_at + 8 * words),
        _written(struct.pack(f"<{len(code)}q", *code)),
    )
    places = tuple((place, length) for _, place, length in weights)
    tables += of_constants + _WORD * (instructions + words)
    return ProgramInLibrary(begin, end, places, pieces, tables)


def _read_header(reader: _Reader) -> bool:
    """Whether memory scopes follow on the table of functions."""
    magic = reader.count()
    if magic not in (_MAGIC, _MAGIC_WITH_SCOPES) or reader.text() != _VERSION:
        raise _OtherFormError
    return magic == _MAGIC_WITH_SCOPES


# What the containers of TVM's virtual machine take where words have eight bytes, with the library
# of GCC: an entry of the table of functions with its line in the map of names, its pointer and its
# object; a text that is kept within its own 32 bytes; a constant that is in two lists and in the
# map of scopes, a tensor's object with its shape, and what an aligned piece of memory takes more.
_WORD = 8
_FUNCTION_BYTES = 96 + 64 + 8 + 16 + 64
_TEXT_BYTES, _TEXT_WITHIN = 32, 15
_REGISTER_BYTES = 16
_CONSTANT_BYTES = 2 * 16 + 64 + 8
_TENSOR_BYTES, _DIMENSION_BYTES = 24 + 48 + 16, 2 * 8
_ALIGNED_BYTES = 64 + 16


def _read_function(reader: _Reader) -> int:
    """Reads a line of the table of functions: the bytes that it takes in memory."""
    reader.numbers("i")
    name = reader.text()
    if name == WEIGHTS_FUNCTION.encode():
        raise _OtherFormError
    *_, registers = reader.numbers("4q")
    parameters = [_TEXT_BYTES + _long_text(reader.text()) for _ in range(reader.count())]
    # The name is in the table and in the map of names.
    of_names = 2 * _long_text(name) + sum(parameters)
    return _FUNCTION_BYTES + _REGISTER_BYTES * registers + of_names


def _long_text(text: bytes) -> int:
    """The bytes of a text that are not within its object."""
    return 0 if len(text) <= _TEXT_WITHIN else -(-(len(text) + 1 + _WORD) // 16) * 16


def _read_constants(reader: _Reader) -> tuple[list[tuple[int, int, int]], int]:
    """Number, place and bytes of each large constant; the bytes of all beside their values."""
    found, tables = [], 0
    for number in range(reader.count()):
        tables += _CONSTANT_BYTES
        (kind,) = reader.numbers("i")
        if kind == _TENSOR:
            length, rank = _read_tensor_header(reader)
            tables += _TENSOR_BYTES + rank * _DIMENSION_BYTES + _ALIGNED_BYTES
            if length >= _LARGE_BYTES:
                found.append((number, reader.place, length))
            reader.skip(length)
        elif kind == _SHAPE:
            reader.skip(8 * reader.count())
        elif kind == _STRING:
            reader.skip(reader.count())
        elif kind in _SIZES_OF_PLAIN:
            reader.skip(_SIZES_OF_PLAIN[kind])
        else:
            raise _OtherFormError
    return found, tables


def _read_tensor_header(reader: _Reader) -> tuple[int, int]:
    """The bytes of the values, which follow, and the number of dimensions."""
    magic, _, _, _, rank = reader.numbers("2Q2ii")
    if magic != _TENSOR_MAGIC or rank < 0:
        raise _OtherFormError
    reader.skip(4 + 8 * rank)
    return reader.numbers("q")[0], rank


def _added_functions(functions: int, instructions: int) -> bytes:
    """Two more lines of the table of functions: name, first and last instruction, sizes."""
    name = WEIGHTS_FUNCTION.encode()
    make = struct.pack("<iQ", _PACKED_FUNCTION, len(_MAKE_ARRAY)) + _MAKE_ARRAY
    get = struct.pack("<iQ", _FUNCTION, len(name)) + name
    code = struct.pack("<4qQ", instructions, instructions + 2, 0, 1, 0)
    return make + struct.pack("<4qQ", 0, 0, 0, 0, 0) + get + code


def _added_code(functions: int, constants: Sequence[int]) -> list[int]:
    """Instructions: an array of these constants into register 0, which is returned."""
    arguments = [_CONSTANT | number for number in constants]
    return [_CALL, 0, functions, len(arguments), *arguments, _RETURN, 0]


def _copied(begin: int, end: int) -> _Piece:
    return _Piece(end - begin, place=begin)


def _written(content: bytes) -> _Piece:
    return _Piece(len(content), content=content)


def _without_weights(begin: int, end: int, weights: Sequence[tuple[int, int, int]]) -> list[_Piece]:
    pieces = []
    for _, place, length in weights:
        pieces += [_copied(begin, place), _Piece(length)]
        begin = place + length
    return [*pieces, _copied(begin, end)]


# The call of TVM's reader, on bytes that nobody copies: of ``bytes``, it makes a copy.


class _ObjectOfBytes(ctypes.Structure):
    """An object of TVM's FFI that holds bytes: TVMFFIObject and TVMFFIByteArray."""

    _fields_ = (
        ("references", ctypes.c_uint64),
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("deleter", ctypes.c_void_p),
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
    )


class _Any(ctypes.Structure):
    """A value of TVM's FFI: TVMFFIAny."""

    _fields_ = (
        ("type_index", ctypes.c_int32),
        ("padding", ctypes.c_uint32),
        ("value", ctypes.c_void_p),
    )


# One strong and one weak reference are ours, so that nobody else deletes the object.
_OUR_REFERENCES = (1 << 32) + 1


def _loaded(region: mmap.mmap, size: int) -> tvm_ffi.Module | None:
    """The program in ``region``; None where TVM refuses it."""
    found: list[Any] = []
    first = (ctypes.c_char * size).from_buffer(region)
    try:
        content = _ObjectOfBytes(_OUR_REFERENCES, _BYTES, 0, None, ctypes.addressof(first), size)
        argument = _Any(_BYTES, 0, ctypes.addressof(content))
        reader = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.relax.VMExecutable")
        made = _Any(0, 0, None)
        if not _call(reader, argument, made):
            return None
        # The module as an object of Python, which is what a function of Python is given.
        _call(tvm_ffi.convert(found.append), made, _Any(0, 0, None))
        _interface().TVMFFIObjectDecRef(ctypes.c_void_p(made.value))
    finally:
        # The memory cannot be given back while it is looked at.
        del first
    return found[0] if found else None


def _call(function: tvm_ffi.Function, argument: _Any, result: _Any) -> bool:
    """Calls a function of TVM's FFI; whether it raised nothing."""
    library = _interface()
    handle = ctypes.c_void_p(function.__chandle__())
    if library.TVMFFIFunctionCall(handle, ctypes.byref(argument), 1, ctypes.byref(result)) == 0:
        return True
    error = ctypes.c_void_p()
    library.TVMFFIErrorMoveFromRaised(ctypes.byref(error))
    library.TVMFFIObjectDecRef(error)
    return False


def _interface() -> ctypes.CDLL:
    return ctypes.CDLL(find_libtvm_ffi())
