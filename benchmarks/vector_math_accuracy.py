"""Measures the functions of tir_schedules/cpu/vector_math and writes their table.

Error is the distance from the exact result, taken from NumPy and SciPy in float64, in units of the
last place (ULP): the spacing of float32 numbers at the exact result, 2**-149 at least. Arguments
are all bit patterns of float32 in steps of a prime number, all neighbours of critical points, and
special values, whose results must be those of IEEE 754 with their signs.

    python benchmarks/vector_math_accuracy.py                  # print the table
    python benchmarks/vector_math_accuracy.py --write docs/reference/vector-math.md
"""

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.special
import tvm
from numpy.typing import NDArray
from tvm import s_tir, te, tirx

from tvm_ext.hardware.cpu.host import cpu_of_tvm_target, host_description
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.cpu.vector_math.rewrite import with_vector_math

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

CHUNK = 1 << 20
# Bit patterns between two samples: 20 million of 2**32 in all.
STRIDE = 211
# Patterns on either side of a critical point that are all measured.
NEIGHBOURS = 4096

BEGIN, END = "<!-- measured -->", "<!-- end -->"
NO_FMA = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v2"}
# Targets whose instructions are counted, and the results that one vector holds.
COUNTED = {"avx512": 16, "avx2": 8, "aarch64-neon": 4}

# Where methods change, and where functions have zeros, poles and turns.
_PI = np.pi
_LN2 = np.log(2)
CRITICAL = np.array(
    [
        *(0, 2**-126, 0.25, 0.5, 2**-0.5, 1, 2**0.5, _LN2 / 2, _LN2, _PI / 4, _PI / 2, _PI),
        *(3.92, 8.66, 9.01, 10, 38.23, 38.53, 44.85, 87.34, 88.72, 89.41, 103.97, 126, 128, 150),
        *(2 * _PI, 1e4, 2**25, 2**28, 1e8),
    ],
    np.float32,
)
SPECIAL = np.array(
    [0, 1, 0.5, 2, 3, 88, 104, 150, 1e-45, 2**-126, 3.4028235e38, np.inf], np.float32
)


@dataclass(frozen=True)
class Function:
    """One row of the table.

    Attributes
    ----------
    name : str
        What the row is called.
    call : Callable
        The expression of its arguments that a kernel has.
    exact : Callable
        The same on arrays of float64.
    most : float
        Largest absolute argument for which the error holds.
    arguments : int
        1, or 2.
    """

    name: str
    call: Callable[..., tirx.Expr]
    exact: Callable[..., Doubles]
    most: float = np.inf
    arguments: int = 1


def _power(exponent: float) -> Function:
    constant = tirx.const(exponent, "float32")
    return Function(
        f"pow by {exponent:g}",
        lambda x: tirx.call_intrin("float32", "tirx.pow", x, constant),
        lambda x: np.power(x, np.full_like(x, exponent)),
    )


_EXACT: dict[str, Callable[..., Doubles]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "exp10": lambda x: np.power(10.0, x),
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sigmoid": scipy.special.expit,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": scipy.special.erf,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
}
_PERIODIC: dict[str, Callable[..., Doubles]] = {"sin": np.sin, "cos": np.cos, "tan": np.tan}
_CONSTANT_EXPONENTS = (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 0.75, 1.5, 2.0, 3.0, 4.0)

FUNCTIONS: tuple[Function, ...] = (
    *(Function(name, getattr(tirx, name), exact) for name, exact in _EXACT.items()),
    *(Function(name, getattr(tirx, name), exact, 1e8) for name, exact in _PERIODIC.items()),
    Function("pow", tirx.pow, np.power, arguments=2),
    *(_power(exponent) for exponent in _CONSTANT_EXPONENTS),
)


@dataclass(frozen=True)
class Row:
    """What was measured for one function; ``instructions`` in the order of ``COUNTED``."""

    name: str
    most: float
    fused: float
    separate: float
    instructions: tuple[int, ...]

    def __str__(self) -> str:
        span = "all" if np.isinf(self.most) else f"up to {self.most:.0e}".replace("e+0", "e")
        errors = f"{self.fused:.2f} | {self.separate:.2f}"
        return f"| {self.name} | {span} | {errors} | {' | '.join(map(str, self.instructions))} |"


def kernel(function: Function, length: int, lanes: int, target: tvm.target.Target) -> tirx.PrimFunc:
    """The function on each of ``length`` elements, ``lanes`` in one vector, for one CPU."""
    inputs = [te.placeholder((length,), "float32", f"x{i}") for i in range(function.arguments)]
    output = te.compute((length,), lambda i: function.call(*(x(i) for x in inputs)), "y")
    sch = s_tir.Schedule(te.create_prim_func([*inputs, output]))
    (loop,) = sch.get_loops(sch.get_sblock("y"))
    _, vector = sch.split(loop, [None, lanes])
    sch.vectorize(vector)
    features = cpu_of_tvm_target(target).features
    return with_vector_math(sch.mod["main"], features).func.with_attr("global_symbol", "main")


def compiled(function: Function, target: tvm.target.Target) -> Callable[..., Floats]:
    """The function on arrays of up to ``CHUNK`` numbers."""
    program = tirx.build(tvm.IRModule({"main": kernel(function, CHUNK, 16, target)}), target=target)
    result = tvm.runtime.empty((CHUNK,), "float32")

    def run(*arguments: Floats) -> Floats:
        count = len(arguments[0])
        padded = [np.resize(a, CHUNK) if count < CHUNK else a for a in arguments]
        program["main"](*(tvm.runtime.tensor(a) for a in padded), result)
        return np.asarray(result.numpy()[:count])

    return run


def units(given: Floats, exact: Doubles) -> Doubles:
    """The error of each result in units of the last place; infinite where only one is NaN."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        bounded = np.minimum(np.abs(exact), np.finfo(np.float32).max)
        exponent = np.maximum(np.frexp(bounded)[1] - 1, -126)
        error = np.abs(given - exact) / np.ldexp(1.0, exponent - 23)
    same = (given == rounded) & ~np.isfinite(rounded)
    nan, wanted_nan = np.isnan(given), np.isnan(exact)
    return np.where(same | (nan & wanted_nan), 0.0, np.where(nan | wanted_nan, np.inf, error))


def same_specials(given: Floats, exact: Doubles) -> bool:
    """Whether zeros, infinities and NaN stand where they should, with their signs."""
    with np.errstate(all="ignore"):
        wanted = exact.astype(np.float32)
    outside = (wanted == 0) | np.isinf(wanted) | np.isnan(wanted)
    nan = np.isnan(wanted)
    equal = (given == wanted) & (np.signbit(given) == np.signbit(wanted))
    return bool(np.all(np.where(nan, np.isnan(given), equal | ~outside)))


def special_arguments(arguments: int) -> list[Floats]:
    """All combinations of special values, one array an argument."""
    values = np.array([*SPECIAL, *-SPECIAL, np.nan], np.float32)
    grid = np.array(list(itertools.product(values, repeat=arguments)), np.float32)
    return [np.ascontiguousarray(column) for column in grid.T]


def samples(function: Function, stride: int) -> Iterator[list[Floats]]:
    """Arguments in chunks; those of two arguments are drawn so that results are finite."""
    if function.arguments == 2:
        yield from _pairs(max(1, (1 << 32) // stride // CHUNK))
        return
    patterns = np.arange(0, 1 << 32, stride, dtype=np.uint64).astype(np.uint32)
    around = np.arange(-NEIGHBOURS, NEIGHBOURS + 1)
    critical = (CRITICAL.view(np.uint32)[:, None] + around).astype(np.uint32).ravel()
    signs = np.concatenate([critical, critical ^ np.uint32(1 << 31)])
    for part in (patterns, signs):
        for start in range(0, len(part), CHUNK):
            x = part[start : start + CHUNK].view(np.float32)
            with np.errstate(invalid="ignore"):
                yield [np.where(np.abs(x) > function.most, np.float32(0), x)]


def _pairs(chunks: int) -> Iterator[list[Floats]]:
    draw = np.random.default_rng(0)
    for number in range(chunks):
        spread = (0.5, 5.0, 80.0)[number % 3]
        x = np.exp(draw.uniform(-spread, spread, CHUNK))
        reach = np.minimum(100.0 / np.maximum(np.abs(np.log(x)), 1e-9), 1e9)
        y = draw.uniform(-1, 1, CHUNK) * reach
        yield [x.astype(np.float32), y.astype(np.float32)]


def largest_error(function: Function, target: tvm.target.Target, stride: int) -> float:
    """In units of the last place; raises ArithmeticError when a special value is wrong."""
    run = compiled(function, target)
    worst = 0.0
    with np.errstate(all="ignore"):
        special = special_arguments(function.arguments)
        exact = function.exact(*(a.astype(np.float64) for a in special))
        known = np.all([~(np.abs(a) > function.most) | np.isinf(a) for a in special], axis=0)
        if not same_specials(run(*special)[known], exact[known]):
            raise ArithmeticError(f"{function.name}: special values are not those of IEEE 754")
        for arguments in samples(function, stride):
            exact = function.exact(*(a.astype(np.float64) for a in arguments))
            worst = max(worst, float(np.max(units(run(*arguments), exact))))
    return worst


def instructions(function: Function, target: tvm.target.Target, lanes: int) -> int:
    """Instructions for one vector without moves; raises ArithmeticError when one is a call."""
    built = tirx.build(
        tvm.IRModule({"main": kernel(function, lanes, lanes, target)}), target=target
    )
    body = built.inspect_source("asm").split("main_compute_:")[1].split(".cfi_endproc")[0]
    names = re.findall(r"^\t([a-z]\w*)", body, re.MULTILINE)
    if any(re.match(r"call|bl$|b$|jmp", name) for name in names):
        raise ArithmeticError(f"{function.name}: the code for {target} calls a library")
    moves = r"[fv]?p?mov|vbroadcast|vzeroupper|ret|ld[rp]|st[rp]|adrp?|dup|push|pop|[vp]*xor"
    return sum(not re.match(moves, name) for name in names)


def measure(functions: Sequence[Function], stride: int) -> list[Row]:
    """One row a function; needs an x86-64 CPU with fused multiply-add."""
    fused, separate = host_description().tvm_target(), tvm.target.Target(NO_FMA)
    counted = {resolve_target(name).tvm_target(): lanes for name, lanes in COUNTED.items()}
    rows = []
    for function in functions:
        errors = [largest_error(function, target, stride) for target in (fused, separate)]
        counts = [instructions(function, target, lanes) for target, lanes in counted.items()]
        rows.append(Row(function.name, function.most, errors[0], errors[1], tuple(counts)))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    head = ["function", "arguments", "ULP with FMA", "ULP without"]
    head += [f"{name}, {lanes} results" for name, lanes in COUNTED.items()]
    rule = ["---", "---", *["---:"] * (len(head) - 2)]
    return "\n".join([f"| {' | '.join(head)} |", f"| {' | '.join(rule)} |", *map(str, rows)])


def main() -> int:
    """Exit code 1 when a special value is wrong or a function calls a library."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="a page whose table is replaced")
    parser.add_argument("--stride", type=int, default=STRIDE, help="patterns between two samples")
    options = parser.parse_args()
    try:
        measured = table(measure(FUNCTIONS, options.stride))
    except ArithmeticError as error:
        print(error, file=sys.stderr)
        return 1
    if options.write is None:
        print(measured)
        return 0
    before, rest = options.write.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    page = f"{before}{BEGIN}\n{measured}\n{END}{after}"
    options.write.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
