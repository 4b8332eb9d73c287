"""What a kernel of a recurrent layer computes: the description that it carries as an annotation.

The layer's input times its input weights is an ordinary matmul over all steps. What is left
is one kernel with all steps inside. Its loops are written from here: one by one when a model is
imported, in registers when a template schedules it for a machine.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeAlias

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

ANNOTATION = "tvm_ext.recurrence"

# Recurrent weights are padded along their sums to a multiple of this, so that steps of a sum can be
# unrolled without a rest.
SUM_UNROLL = 4

# Units of a block are a multiple of this: a vector of the widest registers, whole ones of others.
_UNIT_MULTIPLE = 16

# Sums that run at a time in a block: eight vectors of the widest registers hide the latency of a
# multiply-add.
_SUMS_OF_BLOCK = 128

Cell: TypeAlias = Literal["LSTM", "GRU", "RNN"]

# Of an LSTM.
_MOST_GATES = 4


@dataclass(frozen=True)
class Activation:
    """An activation function: ONNX's name in lower case, and its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class RecurrentMatmul:
    """The state times recurrent weights, and the gates that wait for it.

    Attributes
    ----------
    weights : str
        The operand that is multiplied with.
    state : str
        "h", "rh" for the state after GRU's reset gate, or "rounded_h" for the quantised one.
    gates : tuple[int, ...]
        The gates whose sums it gives, as ONNX numbers them.
    """

    weights: str
    state: str
    gates: tuple[int, ...]


@dataclass(frozen=True)
class Recurrence:
    """A recurrent layer without its input projection; ONNX operators LSTM, GRU and RNN, opset 22.

    Attributes
    ----------
    cell : str
        "LSTM", "GRU" or "RNN".
    hidden : int
        Units of the layer, ``H`` below.
    reverse : tuple[bool, ...]
        For each direction whether it runs from the last step to the first.
    activations : tuple[tuple[Activation, ...], ...]
        For each direction its functions, in ONNX's order.
    clip : float or None
        Bound of the gates' sums, on both sides.
    linear_before_reset, input_forget : bool
        ONNX's attributes of GRU and LSTM.
    batch_first : bool
        Whether the batch is the first axis of all sequences and states (ONNX's layout 1).
    initial_h, initial_c, lengths, peepholes : bool
        Whether there are such operands.
    quantized_state : bool
        Whether an LSTM's state is rounded to 8-bit steps of each sequence's own range before it is
        multiplied, as com.microsoft's DynamicQuantizeLSTM does.
    integer_weights : bool
        Whether the recurrent weights are integers, with steps and sums of their columns beside.
    """

    cell: Cell
    hidden: int
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    linear_before_reset: bool = False
    input_forget: bool = False
    batch_first: bool = False
    initial_h: bool = False
    initial_c: bool = False
    lengths: bool = False
    peepholes: bool = False
    quantized_state: bool = False
    integer_weights: bool = False

    @property
    def gates(self) -> int:
        """Gates of a cell, the candidate among them."""
        return {"LSTM": 4, "GRU": 3, "RNN": 1}[self.cell]

    @property
    def directions(self) -> int:
        """1 or 2."""
        return len(self.reverse)

    @property
    def units(self) -> int:
        """Units of a block, whose weights lie together: see ``operands``."""
        widest = max(1, _SUMS_OF_BLOCK // (_UNIT_MULTIPLE * len(self.products()[0].gates)))
        sizes = [_UNIT_MULTIPLE * n for n in range(widest, 0, -1)]
        return min(sizes, key=lambda size: -(-self.hidden // size) * size)

    @property
    def blocks(self) -> int:
        """Blocks of units; the last one may be padded."""
        return -(-self.hidden // self.units)

    @property
    def padded(self) -> int:
        """Units with those of the padding."""
        return self.blocks * self.units

    @property
    def summed(self) -> int:
        """Steps of a sum over the state, with those of the padding."""
        return -(-self.hidden // SUM_UNROLL) * SUM_UNROLL

    def products(self) -> tuple[RecurrentMatmul, ...]:
        """The products of a step, in order."""
        if self.cell == "GRU" and not self.linear_before_reset:
            return RecurrentMatmul("r", "h", (0, 1)), RecurrentMatmul("r_candidate", "rh", (2,))
        state = "rounded_h" if self.quantized_state else "h"
        return (RecurrentMatmul("r", state, tuple(range(self.gates))),)

    def operands(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, inputs before outputs. ``T`` steps, ``B`` sequences.

        - ``x``: the projected input with all biases that are added outside of the reset gate,
          ``[T, B, directions * blocks * gates * units]`` (``[B, T, ...]`` with ``batch_first``)
        - ``r``, ``r_candidate``: ``[directions, blocks, gates of the product, summed, units]``
        - ``r_scale``: the step of each column of integer weights,
          ``[directions, blocks, gates, units]``
        - ``r_sums``: the sum of each column of integer weights, int32, as ``r_scale``
        - ``b_candidate``: the bias inside of GRU's reset gate, ``[directions, padded]``
        - ``peepholes``: ``[directions, 3, padded]``
        - ``lengths``: int32 ``[B]``
        - ``initial_h``, ``initial_c``, ``last_h``, ``last_c``: ``[directions, B, H]``
          (``[B, directions, H]``)
        - ``y``: ``[T, directions, B, H]`` (``[B, T, directions, H]``)
        """
        inner = self.cell == "GRU" and self.linear_before_reset
        optional = {
            "r_scale": self.integer_weights,
            "r_sums": self.integer_weights,
            "b_candidate": inner,
            "peepholes": self.peepholes,
            "lengths": self.lengths,
            "initial_h": self.initial_h,
            "initial_c": self.initial_c,
        }
        weights = [product.weights for product in self.products()]
        given = [name for name, is_there in optional.items() if is_there]
        return ("x", *weights, *given, *self.results())

    def results(self) -> tuple[str, ...]:
        """The operands that the kernel writes."""
        return ("y", "last_h", "last_c") if self.cell == "LSTM" else ("y", "last_h")

    def states(self) -> tuple[str, ...]:
        """The arrays that go from step to step, or from one product of a step to the next."""
        if self.cell == "LSTM":
            rounded = ("rounded_h",) if self.quantized_state else ()
            return ("h", "c", "next_h", *rounded)
        return ("h", "next_h", "z", "rh") if len(self.products()) > 1 else ("h", "next_h")

    def annotation(self) -> str:
        """The description as JSON, for ``described_by``."""
        return json.dumps(asdict(self), sort_keys=True)


def described_by(annotation: str) -> Recurrence:
    """The recurrence that ``Recurrence.annotation`` described."""
    fields = json.loads(annotation)
    activations = tuple(tuple(Activation(**f) for f in d) for d in fields.pop("activations"))
    reverse = tuple(fields.pop("reverse"))
    return Recurrence(reverse=reverse, activations=activations, **fields)


@dataclass(frozen=True)
class RecurrenceOperands:
    """The arrays of a kernel by the names of ``Recurrence.operands``, and what its loops count.

    ``steps`` and ``batch`` may be symbolic.
    """

    recurrence: Recurrence
    arrays: dict[str, Any]

    @property
    def dtype(self) -> str:
        """Element type of the states."""
        return str(self.arrays["x"].dtype)

    @property
    def steps(self) -> tvm.ir.Expr:
        """Steps of the longest sequence."""
        return self.arrays["x"].shape[1 if self.recurrence.batch_first else 0]

    @property
    def batch(self) -> tvm.ir.Expr:
        """Sequences."""
        return self.arrays["x"].shape[0 if self.recurrence.batch_first else 1]

    def load(self, name: str, *indices: Any) -> tvm.ir.Expr:
        """An element of an operand."""
        return tirx.BufferLoad(self.arrays[name], list(indices))

    def projected(self, step: tvm.ir.Expr, row: tvm.ir.Expr, column: tvm.ir.Expr) -> tvm.ir.Expr:
        """An element of ``x``."""
        batch_first = self.recurrence.batch_first
        return self.load("x", *((row, step) if batch_first else (step, row)), column)

    def state_indices(
        self, direction: tvm.ir.Expr, row: tvm.ir.Expr, unit: tvm.ir.Expr
    ) -> list[tvm.ir.Expr]:
        """Where a state is in ``initial_h`` and the like."""
        both = [row, direction] if self.recurrence.batch_first else [direction, row]
        return [*both, unit]

    def y_indices(
        self, step: tvm.ir.Expr, direction: tvm.ir.Expr, row: tvm.ir.Expr, unit: tvm.ir.Expr
    ) -> list[tvm.ir.Expr]:
        """Where a state is in ``y``."""
        if self.recurrence.batch_first:
            return [row, step, direction, unit]
        return [step, direction, row, unit]


def recurrence_of(func: tirx.PrimFunc) -> RecurrenceOperands | None:
    """What a kernel with the annotation computes, None for other kernels."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    found = _annotation(func.body.block)
    if found is None:
        return None
    recurrence = described_by(found)
    names = recurrence.operands()
    # Between them can be sizes that the model leaves dynamic.
    arrays = [param for param in func.params if not isinstance(param.ty, tvm.ir.PrimType)]
    if len(arrays) != len(names):
        return None
    return RecurrenceOperands(recurrence, dict(zip(names, arrays, strict=True)))


def _annotation(root: s_tir.SBlock) -> str | None:
    """That of the only block in the root, or the root's own."""
    for block in (root, getattr(root.body, "block", None)):
        if block is not None and ANNOTATION in block.annotations:
            return str(block.annotations[ANNOTATION])
    return None


# What a recurrent cell does with the sums of a step: gates, activations, the new state.
#
# The equations are those of the ONNX operators LSTM, GRU and RNN (opset 22); those of LSTM go
# back to F. A. Gers, J. Schmidhuber, "Recurrent nets that time and count" (IJCNN 2000), those of
# GRU to K. Cho et al., "Learning phrase representations using RNN encoder-decoder" (EMNLP 2014).


class Unit(Protocol):
    """One unit of one sequence in one step: its numbers by name.

    Attributes
    ----------
    active : Expr or None
        Whether the sequence still runs in this step; None when all run to the end.
    """

    active: Any

    def gate(self, index: int) -> Any:
        """The sum of a gate: projected input, bias, and the product with the state."""
        ...

    def projected(self, index: int) -> Any:
        """The part of a gate's sum that comes from the input."""
        ...

    def peephole(self, index: int) -> Any:
        """A peephole weight."""
        ...

    def state(self, name: str) -> Any:
        """A state, by a name of ``Recurrence.states``."""
        ...

    def put(self, name: str, value: Any) -> tirx.Stmt:
        """The statement that stores a state."""
        ...


def cell_statements(
    recurrence: Recurrence, product: int, functions: tuple[Activation, ...], unit: Unit
) -> list[tirx.Stmt]:
    """What follows on product number ``product`` of ``recurrence.products()`` for one unit."""
    cell = _Cell(recurrence, functions, unit)
    if recurrence.cell == "LSTM":
        return cell.lstm()
    if recurrence.cell == "RNN":
        return [unit.put("next_h", cell.activated(0, unit.gate(0)))]
    if recurrence.linear_before_reset:
        return cell.gru_in_one()
    return cell.gru_gates() if product == 0 else cell.gru_candidate()


@dataclass
class _Cell:
    recurrence: Recurrence
    functions: tuple[Activation, ...]
    unit: Unit

    def activated(self, function: int, x: tvm.ir.Expr) -> tvm.ir.Expr:
        """An activation of the sum ``x``, which is clipped before."""
        clip = self.recurrence.clip
        if clip is not None:
            dtype = str(x.ty)
            low, high = tirx.const(-clip, dtype), tirx.const(clip, dtype)
            x = tirx.Max(low, tirx.Min(high, x))
        return self._applied(function, x)

    def _applied(self, function: int, x: tvm.ir.Expr) -> tvm.ir.Expr:
        chosen = self.functions[function]
        return _FUNCTIONS[chosen.name](x, chosen)

    def lstm(self) -> list[tirx.Stmt]:
        """Gates are numbered i, o, f, c; peepholes i, o, f."""
        unit, c = self.unit, self.unit.state("c")
        i = self.activated(0, self._seen(0, 0, c))
        f = self.activated(0, self._seen(2, 2, c))
        if self.recurrence.input_forget:
            f = tirx.const(1.0, str(i.ty)) - i
        new_c = f * c + i * self.activated(1, unit.gate(3))
        if unit.active is not None:
            new_c = tirx.Select(unit.active, new_c, c)
        # The output gate sees the new state, which its load comes after.
        o = self.activated(0, self._seen(1, 1, c))
        # ONNX Runtime clips the sums of gates and not this one.
        squashed = self._applied(2, c)
        return [unit.put("c", new_c), unit.put("next_h", o * squashed)]

    def _seen(self, gate: int, peephole: int, c: tvm.ir.Expr) -> tvm.ir.Expr:
        """The sum of a gate that looks at the cell's state."""
        total = self.unit.gate(gate)
        return total + self.unit.peephole(peephole) * c if self.recurrence.peepholes else total

    def gru_in_one(self) -> list[tirx.Stmt]:
        """Gates z, r, h; the reset gate applies to the product of the candidate."""
        z, r = (self.activated(0, self.unit.gate(gate)) for gate in (0, 1))
        candidate = self.activated(1, self.unit.projected(2) + r * self.unit.gate(2))
        return [self._mixed(z, candidate)]

    def gru_gates(self) -> list[tirx.Stmt]:
        """Gates z and r; the reset gate applies to the state before the candidate's product."""
        z, r = (self.activated(0, self.unit.gate(gate)) for gate in (0, 1))
        return [self.unit.put("z", z), self.unit.put("rh", r * self.unit.state("h"))]

    def gru_candidate(self) -> list[tirx.Stmt]:
        """The rest after ``gru_gates``."""
        candidate = self.activated(1, self.unit.gate(2))
        return [self._mixed(self.unit.state("z"), candidate)]

    def _mixed(self, z: tvm.ir.Expr, candidate: tvm.ir.Expr) -> tirx.Stmt:
        one = tirx.const(1.0, str(z.ty))
        return self.unit.put("next_h", (one - z) * candidate + z * self.unit.state("h"))


def _number(value: float, x: tirx.Expr) -> tirx.Expr:
    return tirx.const(value, str(x.ty))


def _hard_sigmoid(x: tirx.Expr, f: Activation) -> tirx.Expr:
    line = _number(f.alpha, x) * x + _number(f.beta, x)
    return tirx.Max(_number(0, x), tirx.Min(_number(1, x), line))


def _elu(x: Any, f: Activation) -> Any:
    low = tirx.Min(x, _number(0, x))
    bent = _number(f.alpha, x) * (tirx.exp(low) - _number(1, x))
    return tirx.Select(x >= _number(0, x), x, bent)


def _softplus(x: Any, _f: Activation) -> Any:
    """``log(1 + exp(x))`` that does not overflow."""
    return tirx.Max(x, _number(0, x)) + tirx.log1p(tirx.exp(-tirx.abs(x)))


_FUNCTIONS: dict[str, Callable[[Any, Activation], Any]] = {
    "affine": lambda x, f: _number(f.alpha, x) * x + _number(f.beta, x),
    "elu": _elu,
    "hardsigmoid": _hard_sigmoid,
    "leakyrelu": lambda x, f: tirx.Select(x >= _number(0, x), x, _number(f.alpha, x) * x),
    "relu": lambda x, f: tirx.Max(x, _number(0, x)),
    "scaledtanh": lambda x, f: _number(f.alpha, x) * tirx.tanh(_number(f.beta, x) * x),
    "sigmoid": lambda x, f: tirx.sigmoid(x),
    "softplus": _softplus,
    "softsign": lambda x, f: x / (_number(1, x) + tirx.abs(x)),
    "tanh": lambda x, f: tirx.tanh(x),
    "thresholdedrelu": lambda x, f: tirx.Select(x > _number(f.alpha, x), x, _number(0, x)),
}


# How the loops of a recurrence are written, and the statements that they are made of.


INDEX = "int64"

Body = Callable[[Any], tirx.Stmt]


@dataclass(frozen=True)
class RecurrenceLoops:
    """How the loops are written; as it stands, one element after the other.

    Attributes
    ----------
    rows : int
        Sequences whose sums are in registers together, and share each load of a weight.
    sequences : int
        Sequences that take each step together, so that a block of weights is in a cache for all of
        them; fewer than ``rows`` stand for as many.
    gates : int
        Gates whose sums are in registers at a time.
    units : int
        Units of a block whose sums are in registers at a time; they fill vectors.
    ways : int
        Partial sums of each sum, where there are as many gates; a divisor of ``SUM_UNROLL``.
    depth : int
        Steps of a sum after which the sums wait in memory while those of other sequences take the
        same steps; a multiple of ``SUM_UNROLL``, 0 for all of them.
    threads : bool
        Whether directions and groups of sequences are handed to threads.
    tasks : int
        Groups that the sequences of a direction go in at least, where there are enough of them.
    step_threads : bool
        Whether the blocks of units of each step are, where whole groups of sequences are not.
    rest : tuple[RecurrenceLoops, ...]
        Of the sequences that are left, one after the other.
    """

    rows: int = 1
    sequences: int = 1
    gates: int = _MOST_GATES
    units: int = 1
    ways: int = 1
    depth: int = 0
    threads: bool = False
    tasks: int = 1
    step_threads: bool = False
    rest: tuple["RecurrenceLoops", ...] = ()


def number(value: int) -> tvm.ir.Expr:
    """An index."""
    return tirx.const(value, INDEX)


def loop(
    extent: tirx.Expr | int, body: Body, kind: tirx.ForKind = tirx.ForKind.SERIAL
) -> tirx.Stmt:
    """A loop from 0; the body alone where it is known to run once."""
    if static_extent(extent) == 1:
        return body(number(0))
    var = tirx.Var("i", INDEX)
    end = number(extent) if isinstance(extent, int) else extent
    return tirx.For(var, number(0), end, kind, body(var))


def vectors(length: int, body: Body) -> list[tirx.Stmt]:
    """``body`` for each number below ``length`` in unrolled vectors of equal length.

    That is a power of two: LLVM takes others apart into single elements.
    """
    width = length & -length

    def part(start: int) -> tirx.Stmt:
        if width == 1:
            return body(number(start))
        lane = tirx.Var("lane", INDEX)
        vector = tirx.ForKind.VECTORIZED
        return tirx.For(lane, number(0), number(width), vector, body(number(start) + lane))

    return [part(start) for start in range(0, length, width)]


class SequenceTime:
    """Where one sequence is in a step.

    Attributes
    ----------
    active : Expr or None
        Whether it still runs; None when all sequences have all steps.
    position : Expr
        The step of the input and output; behind the end of a sequence that of ``y``'s zeros.
    binds : list[Stmt]
        What has to stand before uses of these.
    """

    def __init__(
        self,
        operands: RecurrenceOperands,
        direction: tvm.ir.Expr,
        row: tvm.ir.Expr,
        step: tvm.ir.Expr,
    ) -> None:
        recurrence, steps = operands.recurrence, operands.steps
        length = steps
        self.binds: list[tirx.Stmt] = []
        self.active: Any = None
        if recurrence.lengths:
            # A length that the model may not have would read elsewhere.
            given = operands.load("lengths", row).astype(INDEX)
            length = self._named("length", tirx.Max(number(0), tirx.Min(given, steps)))
            self.active = step < length
        backward = length - number(1) - step
        if self.active is not None:
            backward = tirx.Select(self.active, backward, step)
        if all(recurrence.reverse):
            position = backward
        elif any(recurrence.reverse):
            position = tirx.Select(direction.equal(number(1)), backward, step)
        else:
            position = step
        self.position = self._named("time", position)

    def _named(self, name: str, value: tvm.ir.Expr) -> tvm.ir.Expr:
        var = tirx.Var(name, INDEX)
        self.binds.append(tirx.Bind(var, value))
        return var
