"""Where the buffers of a kernel are while it is written in MLIR: tensors, or memrefs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch_mlir import ir
from torch_mlir.dialects import linalg, memref, tensor

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.mlir import operations as ops
from tvm_ext.mlir.element_types import dtype_of, stored_type, tensor_of
from tvm_ext.mlir.expressions import ExpressionWriter
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent


@dataclass(frozen=True)
class Slice:
    """A box of a buffer: first element and count of each axis, None for the whole axis."""

    offsets: tuple[Any, ...]
    lengths: tuple[Any, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the buffer."""
        return all(offset is None for offset in self.offsets)

    @property
    def text(self) -> str:
        """Two slices with the same text are the same."""
        pairs = zip(self.offsets, self.lengths, strict=True)
        return " ".join(f"{offset}+{length}" for offset, length in pairs)


class Storage(Protocol):
    """The buffers of a kernel.

    Attributes
    ----------
    is_tensors : bool
        Whether they are values, of which a store makes new ones, and not memory.
    """

    is_tensors: bool

    def check_slices(self, parts: Sequence[Slice]) -> None:
        """Raises NotApplicable where one of the parts cannot be taken."""

    def load(self, buffer: Any, indices: Sequence[ir.Value]) -> ir.Value:
        """Writes the load of an element."""

    def empty(self, shape: Sequence[Any], element: ir.Type, sizes: ExpressionWriter) -> ir.Value:
        """An array without contents."""

    def fill(self, buffer: Any, part: Slice, value: Any, sizes: ExpressionWriter) -> None:
        """Sets each element of a part to the value of an expression."""

    def read_part(self, buffer: Any, part: Slice, sizes: ExpressionWriter) -> ir.Value:
        """A part of a buffer to read."""

    def part_to_write(self, buffer: Any, part: Slice, sizes: ExpressionWriter) -> ir.Value:
        """A part of a buffer as it is, to be an operation's destination."""

    def write_part(
        self, buffer: Any, part: Slice, result: ir.Value, sizes: ExpressionWriter
    ) -> None:
        """Makes the result of an operation the part's new contents."""


class TensorStorage:
    """Buffers as tensors: a store makes a new value of the whole buffer."""

    is_tensors = True

    def __init__(self) -> None:
        self.current: dict[int, ir.Value] = {}

    def check_slices(self, parts: Sequence[Slice]) -> None:
        """Every part can be taken."""

    def load(self, buffer: Any, indices: Sequence[ir.Value]) -> ir.Value:
        """Writes ``tensor.extract``."""
        value = self.current.get(hash(buffer))
        if value is None:
            raise NotApplicable(f"buffer {buffer.name} is read before it is written")
        return tensor.extract(value, indices)

    def empty(self, shape: Sequence[Any], element: ir.Type, sizes: ExpressionWriter) -> ir.Value:
        """Writes ``tensor.empty``."""
        known = [static_extent(size) for size in shape]
        mixed = [
            sizes.index(size) if one is None else one
            for size, one in zip(shape, known, strict=True)
        ]
        return tensor.empty(mixed, element)

    def fill(self, buffer: Any, part: Slice, value: Any, sizes: ExpressionWriter) -> None:
        """Writes ``linalg.fill``."""
        given = ops.cast_to_memory(sizes.value(value), dtype_of(buffer))
        target = self.part_to_write(buffer, part, sizes)
        self.write_part(buffer, part, linalg.fill(given, outs=[target]), sizes)

    def read_part(self, buffer: Any, part: Slice, sizes: ExpressionWriter) -> ir.Value:
        """The tensor, or ``tensor.extract_slice`` of it."""
        value = self.current.get(hash(buffer))
        if value is None:
            raise NotApplicable(f"buffer {buffer.name} is read before it is written")
        return value if part.is_whole else _extracted(value, buffer, part, sizes)

    def part_to_write(self, buffer: Any, part: Slice, sizes: ExpressionWriter) -> ir.Value:
        """As ``read_part``, of a tensor that may have no contents yet."""
        if hash(buffer) not in self.current:
            element = stored_type(dtype_of(buffer))
            self.current[hash(buffer)] = self.empty(buffer.shape, element, sizes)
        return self.read_part(buffer, part, sizes)

    def write_part(
        self, buffer: Any, part: Slice, result: ir.Value, sizes: ExpressionWriter
    ) -> None:
        """The result, or ``tensor.insert_slice`` of it."""
        if part.is_whole:
            self.current[hash(buffer)] = result
            return
        whole = self.current[hash(buffer)]
        self.current[hash(buffer)] = tensor.insert_slice(
            result, whole, *_box(buffer, part, sizes).arguments
        )


class MemrefStorage:
    """Buffers as memory."""

    is_tensors = False

    def __init__(self) -> None:
        self.memory: dict[int, ir.Value] = {}

    def check_slices(self, parts: Sequence[Slice]) -> None:
        """A part of memory has another type than all of it: loops say it more simply."""
        if not all(part.is_whole for part in parts):
            raise NotApplicable("it goes over a part of a buffer")

    def load(self, buffer: Any, indices: Sequence[ir.Value]) -> ir.Value:
        """Writes ``memref.load``."""
        return memref.load(self.of(buffer), indices)

    def store(self, value: ir.Value, buffer: Any, indices: Sequence[ir.Value]) -> None:
        """Writes ``memref.store``."""
        memref.store(value, self.of(buffer), indices)

    def of(self, buffer: Any) -> ir.Value:
        """The buffer's memory; raises NotApplicable where nothing has allocated it."""
        found = self.memory.get(hash(buffer))
        if found is None:
            raise NotApplicable(f"buffer {buffer.name} has no memory of its own")
        return found

    def empty(self, shape: Sequence[Any], element: ir.Type, sizes: ExpressionWriter) -> ir.Value:
        """Writes ``memref.alloca``: nobody reads it."""
        static, dynamic = split_sizes(shape, sizes)
        return memref.alloca(ir.MemRefType.get(static, element), dynamic, [])

    def fill(self, buffer: Any, part: Slice, value: Any, sizes: ExpressionWriter) -> None:
        """Writes ``linalg.fill``."""
        given = ops.cast_to_memory(sizes.value(value), dtype_of(buffer))
        linalg.fill(given, outs=[self.of(buffer)])

    def read_part(self, buffer: Any, part: Slice, sizes: ExpressionWriter) -> ir.Value:
        """The memory."""
        return self.of(buffer)

    def part_to_write(self, buffer: Any, part: Slice, sizes: ExpressionWriter) -> ir.Value:
        """The memory."""
        return self.of(buffer)

    def write_part(
        self, buffer: Any, part: Slice, result: ir.Value, sizes: ExpressionWriter
    ) -> None:
        """Nothing: the operation has written it."""


def split_sizes(shape: Sequence[Any], sizes: ExpressionWriter) -> tuple[list[int], list[ir.Value]]:
    """Sizes as a type has them, and the values of those that are symbolic."""
    known = [static_extent(size) for size in shape]
    dynamic = [sizes.index(size) for size, one in zip(shape, known, strict=True) if one is None]
    any_size = ir.ShapedType.get_dynamic_size()
    return [any_size if one is None else one for one in known], dynamic


@dataclass(frozen=True)
class _Box:
    """A slice in the terms of ``tensor.extract_slice``."""

    shape: list[int]
    arguments: tuple[Any, ...]


def _box(buffer: Any, part: Slice, sizes: ExpressionWriter) -> _Box:
    lengths = [
        size if length is None else length
        for size, length in zip(buffer.shape, part.lengths, strict=True)
    ]
    offsets = [offset or 0 for offset in part.offsets]
    static, dynamic = split_sizes(lengths, sizes)
    ones = [1] * len(offsets)
    return _Box(static, ([], dynamic, [], offsets, static, ones))


def _extracted(value: ir.Value, buffer: Any, part: Slice, sizes: ExpressionWriter) -> ir.Value:
    box = _box(buffer, part, sizes)
    kind = tensor_of(box.shape, dtype_of(buffer))
    return tensor.extract_slice(kind, value, *box.arguments)
