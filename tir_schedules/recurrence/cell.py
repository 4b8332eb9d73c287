"""What a recurrent cell does with the sums of a step: gates, activations, the new state.

The equations are those of the ONNX operators LSTM, GRU and RNN (opset 22); those of LSTM go back to
F. A. Gers, J. Schmidhuber, "Recurrent nets that time and count" (IJCNN 2000), those of GRU to
K. Cho et al., "Learning phrase representations using RNN encoder-decoder" (EMNLP 2014).
"""

from collections.abc import Callable
from typing import Any, Protocol

from tvm import tirx

from tvm_ext.tir_schedules.recurrence.description import Activation, Recurrence


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


class _Cell:
    def __init__(
        self, recurrence: Recurrence, functions: tuple[Activation, ...], unit: Unit
    ) -> None:
        self.recurrence = recurrence
        self.functions = functions
        self.unit = unit

    def activated(self, function: int, x: Any) -> Any:
        """An activation of the sum ``x``, which is clipped before."""
        clip = self.recurrence.clip
        if clip is not None:
            dtype = str(x.ty)
            low, high = tirx.const(-clip, dtype), tirx.const(clip, dtype)
            x = tirx.Max(low, tirx.Min(high, x))
        return self._applied(function, x)

    def _applied(self, function: int, x: Any) -> Any:
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

    def _seen(self, gate: int, peephole: int, c: Any) -> Any:
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

    def _mixed(self, z: Any, candidate: Any) -> tirx.Stmt:
        one = tirx.const(1.0, str(z.ty))
        return self.unit.put("next_h", (one - z) * candidate + z * self.unit.state("h"))


def _number(value: float, x: Any) -> Any:
    return tirx.const(value, str(x.ty))


def _hard_sigmoid(x: Any, f: Activation) -> Any:
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
