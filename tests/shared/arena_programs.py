"""Random Relax programs for the planning of memory: as text for TVM, and computed with NumPy.

They have branches, calls of functions, a loop as a function that calls itself, views, tensors
without elements, sizes that a run decides, and outputs that are inputs or given twice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

Shape = tuple[int | str, ...]
Array = np.ndarray[Any, np.dtype[Any]]

# Rows of 64 bytes: what begins at a row may be a view.
COLUMNS = 16
SQUARE = (4, COLUMNS)
INPUTS: dict[str, Shape] = {"x": SQUARE, "y": SQUARE, "z": (0, COLUMNS), "s": ("n", COLUMNS)}
UNARY: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "negative": np.negative,
    "abs": np.abs,
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "maximum": np.maximum,
    "subtract": np.subtract,
}
MOST_ROWS = 16
LOOPS = 3


@dataclass(frozen=True)
class Statement:
    """``name = text``, which ``compute`` does for the values of ``operands``."""

    name: str
    text: str
    operands: tuple[str, ...]
    compute: Callable[..., Array]


@dataclass(frozen=True)
class Branch:
    """``name`` is the result of one of two bodies."""

    name: str
    chosen: "Body"
    otherwise: "Body"


@dataclass
class Body:
    """Statements in their order, the shapes of all values that are in reach, and the result."""

    shapes: dict[str, Shape]
    statements: list[Statement | Branch] = field(default_factory=list)
    result: str = ""

    def lines(self, name: str = "") -> list[str]:
        """The text; the result is called ``name``."""
        text: list[str] = []
        for one in self.statements:
            if isinstance(one, Statement):
                text.append(f"{one.name} = {one.text}")
                continue
            text.append("if flag:")
            text += [f"    {line}" for line in one.chosen.lines(one.name)]
            text.append("else:")
            text += [f"    {line}" for line in one.otherwise.lines(one.name)]
        return [*text, f"{name} = {self.result}"] if name else text

    def run(self, values: Mapping[str, Array], flag: bool) -> dict[str, Array]:
        """All values, of which ``values`` are known before."""
        known = dict(values)
        for one in self.statements:
            if isinstance(one, Statement):
                known[one.name] = one.compute(*(known[name] for name in one.operands))
            else:
                side = one.chosen if flag else one.otherwise
                known[one.name] = side.run(known, flag)[side.result]
        return known


@dataclass(frozen=True)
class Program:
    """A module as text, and what it computes."""

    main: Body
    step: Body
    outputs: tuple[str, ...]

    def text(self) -> str:
        """The module as TVM's script."""
        given = ", ".join(
            f'{name}: R.Tensor(({", ".join(map(repr, shape))},), "float32")'
            for name, shape in INPUTS.items()
        )
        square = f'R.Tensor({SQUARE}, "float32")'
        body = "\n".join(f"        {line}" for line in self.main.lines())
        step = "\n".join(f"        {line}" for line in self.step.lines("stepped"))
        inner = "\n".join(f"            {line}" for line in self.step.lines("stepped"))
        return f"""
@I.ir_module(check_well_formed=False)
class Module:
    @R.function(private=True)
    def step(x: {square}, flag: R.Tensor((), "bool")) -> {square}:
{step}
        return stepped

    @R.function(private=True)
    def repeat(i: R.Tensor((), "int64"), x: {square}, flag: R.Tensor((), "bool")) -> {square}:
        more = R.less(i, R.const({LOOPS}, "int64"))
        if more:
            following = R.add(i, R.const(1, "int64"))
{inner}
            repeated = Module.repeat(following, stepped, flag)
        else:
            repeated = x
        return repeated

    @R.function
    def main({given}, flag: R.Tensor((), "bool")):
        n = T.int64()
{body}
        return ({", ".join(self.outputs)},)
"""

    def expected(self, inputs: Mapping[str, Array], flag: bool) -> list[Array]:
        """The outputs."""
        values = self.main.run({**inputs, "flag": np.array(flag)}, flag)
        return [values[name] for name in self.outputs]

    def stepped(self, x: Array, flag: Array) -> Array:
        """What the function ``step`` gives."""
        return self.step.run({"x": x, "flag": flag}, bool(flag))[self.step.result]

    def repeated(self, x: Array, flag: Array) -> Array:
        """What the function ``repeat`` gives."""
        for _ in range(LOOPS):
            x = self.stepped(x, flag)
        return x


class _Writer:
    """Draws statements; names are never used twice."""

    def __init__(self, draw: Callable[..., Any], step: Callable[[], Program] | None) -> None:
        self._draw, self._step, self._count = draw, step, 0

    def body(self, shapes: Mapping[str, Shape], most: int, depth: int) -> Body:
        """A body of up to ``most`` statements, with branches up to a depth."""
        made = Body(dict(shapes))
        for _ in range(self._draw(st.integers(1, most))):
            self._add(made, depth)
        made.result = self._chosen(made, lambda shape: shape == SQUARE)
        return made

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"

    def _chosen(self, body: Body, fits: Callable[[Shape], bool]) -> str:
        names = [name for name, shape in body.shapes.items() if fits(shape)]
        # The newest first, which shrinks to short chains.
        return str(self._draw(st.sampled_from(names[::-1])))

    def _add(self, body: Body, depth: int) -> None:
        kinds = [self._unary, self._binary, self._view, self._cut, self._joined, self._summed]
        if self._step is not None:
            kinds.append(self._called)
        if depth:
            kinds.append(lambda body: self._branch(body, depth - 1))
        self._draw(st.sampled_from(kinds))(body)

    def _put(
        self,
        body: Body,
        shape: Shape,
        text: str,
        operands: Sequence[str],
        compute: Callable[..., Array],
    ) -> None:
        name = self._name()
        body.shapes[name] = shape
        body.statements.append(Statement(name, text, tuple(operands), compute))

    def _unary(self, body: Body) -> None:
        operand = self._chosen(body, lambda shape: True)
        name = self._draw(st.sampled_from(list(UNARY)))
        self._put(body, body.shapes[operand], f"R.{name}({operand})", [operand], UNARY[name])

    def _binary(self, body: Body) -> None:
        one = self._chosen(body, lambda shape: True)
        other = self._chosen(body, lambda shape: shape == body.shapes[one])
        name = self._draw(st.sampled_from(list(BINARY)))
        text = f"R.{name}({one}, {other})"
        self._put(body, body.shapes[one], text, [one, other], BINARY[name])

    def _view(self, body: Body) -> None:
        operand = self._chosen(body, lambda shape: "n" not in shape)
        shape = body.shapes[operand]
        size = int(np.prod(shape))
        new = (size,) if len(shape) == 2 else (size // COLUMNS, COLUMNS)
        text = f"R.reshape({operand}, R.shape({list(new)}))"
        self._put(body, new, text, [operand], lambda value: value.reshape(new))

    def _cut(self, body: Body) -> None:
        operand = self._chosen(body, lambda shape: len(shape) == 2 and "n" not in shape)
        rows = int(body.shapes[operand][0])
        first = self._draw(st.integers(0, rows))
        last = self._draw(st.integers(first, rows))
        text = f"R.strided_slice({operand}, [0], [{first}], [{last}])"
        self._put(body, (last - first, COLUMNS), text, [operand], lambda value: value[first:last])

    def _joined(self, body: Body) -> None:
        one = self._chosen(body, lambda shape: len(shape) == 2 and "n" not in shape)
        room = MOST_ROWS - int(body.shapes[one][0])
        other = self._chosen(
            body, lambda shape: len(shape) == 2 and "n" not in shape and int(shape[0]) <= room
        )
        rows = int(body.shapes[one][0]) + int(body.shapes[other][0])
        text = f"R.concat(({one}, {other}), axis=0)"
        self._put(body, (rows, COLUMNS), text, [one, other], lambda *parts: np.concatenate(parts))

    def _summed(self, body: Body) -> None:
        """The sum over rows beside each row of a square: of few numbers, so that it stays small."""
        one = self._chosen(body, lambda shape: len(shape) == 2)
        square = self._chosen(body, lambda shape: shape == SQUARE)
        text = f"R.add({square}, R.tanh(R.sum({one}, axis=[0], keepdims=True)))"
        self._put(body, SQUARE, text, [one, square], _with_sum)

    def _called(self, body: Body) -> None:
        operand = self._chosen(body, lambda shape: shape == SQUARE)
        program = self._step
        assert program is not None
        if self._draw(st.booleans()):
            text, compute = f"Module.step({operand}, flag)", lambda *a: program().stepped(*a)
        else:
            text = f'Module.repeat(R.const(0, "int64"), {operand}, flag)'
            compute = lambda *a: program().repeated(*a)  # noqa: E731
        self._put(body, SQUARE, text, [operand, "flag"], compute)

    def _branch(self, body: Body, depth: int) -> None:
        sides = [self.body(body.shapes, 4, depth) for _ in range(2)]
        name = self._name()
        body.shapes[name] = SQUARE
        body.statements.append(Branch(name, *sides))


def _with_sum(one: Array, square: Array) -> Array:
    return square + np.tanh(one.sum(axis=0, keepdims=True))


@st.composite
def programs(draw: Callable[..., Any]) -> Program:
    """Programs of up to twenty statements."""
    made: list[Program] = []
    step = _Writer(draw, None).body({"x": SQUARE}, 5, 1)
    main = _Writer(draw, lambda: made[0]).body(INPUTS, 20, 2)
    names = list(main.shapes)[::-1]
    outputs = draw(st.lists(st.sampled_from(names), min_size=1, max_size=4))
    made.append(Program(main, step, tuple(outputs)))
    return made[0]
