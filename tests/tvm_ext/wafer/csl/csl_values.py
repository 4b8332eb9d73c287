"""What the values of a CSL program are while it is interpreted."""

from dataclasses import dataclass

import numpy as np

DTYPES = {"f32": np.float32, "f16": np.float16}
_LARGEST = (1 << 15) - 1


class InvalidProgram(Exception):
    """The program does what the machine would not do."""


def checked(value):
    """An integer of 16 bits."""
    if not -_LARGEST - 1 <= value <= _LARGEST:
        raise InvalidProgram(f"{value} does not fit 16 bits")
    return value


@dataclass(frozen=True)
class Pointer:
    """To the first element of an array."""

    array: np.ndarray


@dataclass(frozen=True)
class Vector:
    """A descriptor: elements of an array."""

    array: np.ndarray
    start: int
    stride: int
    length: int

    @property
    def places(self):
        found = self.start + self.stride * np.arange(self.length)
        if found.min() < 0 or found.max() >= self.array.size:
            raise InvalidProgram(f"elements {found} of an array of {self.array.size}")
        return found

    def read(self):
        return self.array[self.places]

    def write(self, values):
        if len(np.unique(self.places)) != self.length:
            raise InvalidProgram("an instruction writes an element twice")
        self.array[self.places] = np.asarray(values).astype(self.array.dtype)

    def moved(self, offset):
        return Vector(self.array, self.start + checked(offset), self.stride, self.length)


# Every vector instruction, on arrays and single elements: the operands behind the target.
INSTRUCTIONS = {
    "fadd": lambda a, b: a + b,
    "fsub": lambda a, b: a - b,
    "fmul": lambda a, b: a * b,
    "fmax": np.maximum,
    "fmov": lambda a: a,
    "fneg": lambda a: -a,
    "fabs": np.abs,
    "fmac": lambda a, b, c: a + b * c,
}

FUNCTIONS = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sqrt": np.sqrt,
    "invsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
}


def instruction(name, target, operands):
    """Runs one vector instruction."""
    values = [one.read() if isinstance(one, Vector) else one for one in operands]
    if name in ("fh2s", "fs2h"):
        expected = (np.float16, np.float32) if name == "fh2s" else (np.float32, np.float16)
        _check_types([values[0].dtype, target.array.dtype], expected)
        target.write(values[0])
        return
    dtype = DTYPES["f32" if name.endswith("s") else "f16"]
    _check_types([np.asarray(v).dtype for v in values] + [target.array.dtype], [dtype])
    if len(operands) == 3 and isinstance(operands[2], Vector):
        raise InvalidProgram("the factor of a multiply-add is a vector")
    if not any(isinstance(one, Vector) for one in operands) and len(operands) > 1:
        raise InvalidProgram("no operand is a vector")
    if {one.length for one in operands if isinstance(one, Vector)} - {target.length}:
        raise InvalidProgram("vectors of different lengths")
    # A multiply-add rounds once.
    wide = [np.asarray(v, np.float64 if dtype == np.float32 else np.float32) for v in values]
    target.write(np.broadcast_to(INSTRUCTIONS[name[:-1]](*wide), (target.length,)))


def _check_types(found, expected):
    if set(np.dtype(one) for one in found) != set(np.dtype(one) for one in expected):
        raise InvalidProgram(f"types {found}; expected {expected}")


def function(name, arguments):
    """A function of the library <math>."""
    base, _, suffix = name.rpartition("_")
    _check_types([np.asarray(one).dtype for one in arguments], [DTYPES[suffix]])
    return DTYPES[suffix](FUNCTIONS[base](*arguments))
