"""What a kernel of a recurrent layer computes: the description that it carries as an annotation.

The layer's input times its input weights is an ordinary matrix product over all steps. What is left
is one kernel with all steps inside. ``code.recurrence_code`` writes its loops from here:
one by one when a model is imported, in registers when a template schedules it for a machine.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import tvm
from tvm import s_tir, tirx

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


@dataclass(frozen=True)
class Activation:
    """An activation function: ONNX's name in lower case, and its parameters."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Product:
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

    def products(self) -> tuple[Product, ...]:
        """The products of a step, in order."""
        if self.cell == "GRU" and not self.linear_before_reset:
            return Product("r", "h", (0, 1)), Product("r_candidate", "rh", (2,))
        state = "rounded_h" if self.quantized_state else "h"
        return (Product("r", state, tuple(range(self.gates))),)

    def operands(self) -> tuple[str, ...]:
        """Names of the kernel's parameters, inputs before outputs. ``T`` steps, ``B`` sequences.

        - ``x``: the projected input with all biases that are added outside of the reset gate,
          ``[T, B, directions * blocks * gates * units]`` (``[B, T, ...]`` with ``batch_first``)
        - ``r``, ``r_candidate``: ``[directions, blocks, summed, gates of the product, units]``
        - ``b_candidate``: the bias inside of GRU's reset gate, ``[directions, padded]``
        - ``peepholes``: ``[directions, 3, padded]``
        - ``lengths``: int32 ``[B]``
        - ``initial_h``, ``initial_c``, ``last_h``, ``last_c``: ``[directions, B, H]``
          (``[B, directions, H]``)
        - ``y``: ``[T, directions, B, H]`` (``[B, T, directions, H]``)
        """
        inner = self.cell == "GRU" and self.linear_before_reset
        optional = {
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
    def steps(self) -> Any:
        """Steps of the longest sequence."""
        return self.arrays["x"].shape[1 if self.recurrence.batch_first else 0]

    @property
    def batch(self) -> Any:
        """Sequences."""
        return self.arrays["x"].shape[0 if self.recurrence.batch_first else 1]

    def load(self, name: str, *indices: Any) -> Any:
        """An element of an operand."""
        return tirx.BufferLoad(self.arrays[name], list(indices))

    def projected(self, step: Any, row: Any, column: Any) -> Any:
        """An element of ``x``."""
        batch_first = self.recurrence.batch_first
        return self.load("x", *((row, step) if batch_first else (step, row)), column)

    def state_indices(self, direction: Any, row: Any, unit: Any) -> list[Any]:
        """Where a state is in ``initial_h`` and the like."""
        both = [row, direction] if self.recurrence.batch_first else [direction, row]
        return [*both, unit]

    def y_indices(self, step: Any, direction: Any, row: Any, unit: Any) -> list[Any]:
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
    # Between them can be sizes that the model leaves open.
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
