"""Rules of data movement: views, transposes, slices, pads, joins and broadcasts.

These operators put elements elsewhere and compute nothing, so the rules hold for every type. Most
need no condition of their own: a result has the pattern's shape, or the rule is not applied.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.expressions import same_extents
from tvm_ext.relay_passes.rewrite_rules.expression import (
    OPERATORS,
    Apply,
    Constant,
    Operator,
    Variable,
)
from tvm_ext.relay_passes.rewrite_rules.rule import (
    ANY,
    BOOLEANS,
    FINITE,
    FLOATS,
    INTEGERS,
    Match,
    Rule,
    output_shape,
)

x, y, c = Variable("x"), Variable("y"), Constant("c")
mask = Variable("mask")
op = OPERATORS
transpose, reshape, concat, split = (
    op[name] for name in ("transpose", "reshape", "concat", "split")
)
broadcast_to, strided_slice = op["broadcast_to"], op["strided_slice"]

UNARY = ("negative", "abs", "relu", "exp", "sqrt", "sigmoid", "tanh", "floor", "round", "square")
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


# Transposes.


def _composed(match: Match) -> tuple[int, ...]:
    """The axes of both transposes, the inner one ``p``, as one."""
    return tuple(match["p"][axis] for axis in match["q"])


def _moves_nothing(name: str) -> Callable[[Match], bool]:
    return lambda match: list(match[name]) == list(range(len(match[name])))


def _cancel(match: Match) -> bool:
    # The outer one has more axes where the inner one's result is broadcast in between.
    same_rank = len(match["p"]) == len(match["q"])
    return same_rank and list(_composed(match)) == list(range(len(match["p"])))


def _cancel_beside_constant(match: Match) -> bool:
    """Whether they cancel, and the constant has as many axes, or as many elements as one."""
    has_all_axes = len(match.extents("c")) == len(match["p"])
    return _cancel(match) and (has_all_axes or match.extents("c") == ())


def _transposed_constant(match: Match) -> tuple[int, ...]:
    return match["q"] if match.extents("c") else ()


def _between(f: Operator, move: Operator, p: dict[str, str], q: dict[str, str]) -> Apply:
    return move(f(move(x, **p)), **q)


P, Q, S = {"axes": "p"}, {"axes": "q"}, {"axes": "s"}


def _transposed_alike(match: Match) -> bool:
    return _cancel(match) and match["p"] == match["s"]


TRANSPOSES = (
    Rule(
        "transpose of a transpose",
        transpose(transpose(x, axes="p"), axes="q"),
        transpose(x, axes=_composed),
        ANY,
    ),
    Rule("transpose of nothing", transpose(x, axes="p"), x, ANY, condition=_moves_nothing("p")),
    *(
        Rule(
            f"transposes around {n}",
            _between(op[n], transpose, P, Q),
            op[n](x),
            FLOATS,
            condition=_cancel,
        )
        for n in UNARY
    ),
    *(
        Rule(
            f"transposes around {n}",
            transpose(op[n](transpose(x, **P), transpose(y, **S)), **Q),
            op[n](x, y),
            FLOATS,
            condition=_transposed_alike,
        )
        for n in BINARY
    ),
    *(
        Rule(
            f"transposes around {n} with a constant",
            transpose(op[n](transpose(x, **P), c), **Q),
            op[n](x, transpose(c, axes=_transposed_constant)),
            FLOATS,
            condition=_cancel_beside_constant,
        )
        for n in BINARY
    ),
)


# Views: relax.squeeze, expand_dims, flatten and batch_flatten are read as the reshapes that they
# are.


def _is_scalar(match: Match) -> bool:
    return match.extents("c") == ()


def _have_same_shape(match: Match) -> bool:
    """Whether nothing is broadcast: views of one size that are broadcast have another one."""
    return same_extents(match.shape("x"), match.shape("y"))


def _is_own_shape(match: Match) -> bool:
    return same_extents(match.shape("x"), match.result.shape)


def _axes_behind_joined(match: Match) -> tuple[int, ...]:
    """The axes of the transpose ``p`` of a view whose first axis is several of ``x``, for ``x``.

    Raises NotApplicable where the transpose moves that axis, or the view changes another one.
    """
    moved = len(match["p"]) - 1
    lead = len(match.shape("x")) - moved
    if lead < 1 or tuple(match["p"][:1]) != (0,):
        raise NotApplicable("the transpose moves the joined axis")
    if not same_extents(match.shape("x")[lead:], match["s"][1:]):
        raise NotApplicable("the view changes an axis that the transpose moves")
    return (*range(lead), *(lead - 1 + axis for axis in match["p"][1:]))


def _divides_as_it_joined(match: Match) -> bool:
    shape = match.shape("x")
    return same_extents([shape[axis] for axis in _axes_behind_joined(match)], match.result.shape)


VIEWS = (
    Rule(
        "views around a transpose",
        reshape(transpose(reshape(x, shape="s"), axes="p"), shape="t"),
        transpose(x, axes=_axes_behind_joined),
        ANY,
        condition=_divides_as_it_joined,
    ),
    Rule("view of its own shape", reshape(x, shape="s"), x, ANY, condition=_is_own_shape),
    Rule(
        "view of a view",
        reshape(reshape(x, shape="s"), shape="t"),
        reshape(x, shape=output_shape),
        ANY,
    ),
    *(
        Rule(
            f"views around {n}", reshape(op[n](reshape(x, shape="s")), shape="t"), op[n](x), FLOATS
        )
        for n in UNARY
    ),
    *(
        Rule(
            f"views around {n}",
            reshape(op[n](reshape(x, shape="s"), reshape(y, shape="r")), shape="t"),
            op[n](x, y),
            FLOATS,
            condition=_have_same_shape,
        )
        for n in BINARY
    ),
    *(
        Rule(
            f"views around {n} with a number",
            reshape(op[n](reshape(x, shape="s"), c), shape="t"),
            op[n](x, c),
            FLOATS,
            condition=_is_scalar,
        )
        for n in BINARY
    ),
)


# Slices. Begin and end are as NumPy takes them, with one for each axis of ``axes``.


def _has_unit_strides(match: Match) -> bool:
    return all(step == 1 for step in match["strides"])


def _ranges(match: Match, prefix: str, extents: Sequence[int]) -> list[range]:
    """What a slice of a tensor with these extents takes along each axis."""
    taken = [range(extent) for extent in extents]
    fields = (match[prefix + name] for name in ("axes", "begin", "end", "strides"))
    for axis, begin, end, step in zip(*fields, strict=True):
        if step <= 0:
            raise NotApplicable("a slice goes backwards")
        taken[axis] = taken[axis][begin:end:step]
    return taken


def _joint_ranges(match: Match) -> list[range]:
    first = _ranges(match, "", match.extents("x"))
    then = _ranges(match, "then_", [len(one) for one in first])
    return [
        one[other.start : other.stop : other.step] for one, other in zip(first, then, strict=True)
    ]


def _is_forward(match: Match) -> bool:
    """Whether both go forward; raises NotApplicable otherwise."""
    return len(_joint_ranges(match)) == len(match.extents("x"))


_JOINT: dict[str, Callable[[Match], Any]] = {
    "axes": lambda match: tuple(range(len(match.extents("x")))),
    "begin": lambda match: tuple(one.start for one in _joint_ranges(match)),
    "end": lambda match: tuple(max(one.start, one.stop) for one in _joint_ranges(match)),
    "strides": lambda match: tuple(one.step for one in _joint_ranges(match)),
}


def _attributes(prefix: str = "") -> dict[str, str]:
    return {name: prefix + name for name in ("axes", "begin", "end", "strides")}


def _progression(match: Match) -> range:
    """The constant as a range forward within an axis; raises NotApplicable for another one."""
    places, extent = match.constants["places"], match.shape("x")[match["axis"]]
    if places.ndim != 1 or not places.size or not isinstance(extent, int):
        raise NotApplicable("the places are no list, or the extent of the axis is not known")
    steps = set(np.diff(places).tolist()) or {1}
    first, last = int(places[0]), int(places[-1])
    if len(steps) > 1 or min(steps) < 1 or first < 0 or last >= extent:
        raise NotApplicable("the places are at no even distances forward, or out of bounds")
    return range(first, last + 1, int(min(steps)))


def _moved_axes(match: Match) -> tuple[int, ...]:
    """The axes of a slice in front of the transpose ``p``."""
    return tuple(match["p"][axis] for axis in match["axes"])


SLICES = (
    Rule(
        "elements at even distances",
        op["take"](x, Constant("places"), axis="axis"),
        strided_slice(
            x,
            axes=lambda match: (match["axis"],),
            begin=lambda match: (_progression(match).start,),
            end=lambda match: (_progression(match).stop,),
            strides=lambda match: (_progression(match).step,),
        ),
        ANY,
        condition=lambda match: len(_progression(match)) > 0,
    ),
    Rule(
        "transposes around a slice",
        transpose(strided_slice(transpose(x, **P), **_attributes()), **Q),
        strided_slice(x, axes=_moved_axes, begin="begin", end="end", strides="strides"),
        ANY,
        condition=_cancel,
    ),
    Rule(
        "slice of everything",
        strided_slice(x, **_attributes()),
        x,
        ANY,
        condition=_has_unit_strides,
    ),
    Rule(
        "slice of a slice",
        strided_slice(strided_slice(x, **_attributes()), **_attributes("then_")),
        strided_slice(x, **_JOINT),
        ANY,
        condition=_is_forward,
    ),
)


# Joins.


def _adjacent(count: int) -> Rule:
    """``count`` slices of one tensor, side by side and in their order, joined again."""
    prefixes = [f"of_{number}_" for number in range(count)]

    def joint(match: Match) -> range | None:
        taken = [_ranges(match, prefix, match.extents("x")) for prefix in prefixes]
        axis = match["axis"]
        parts = [ranges[axis] for ranges in taken]
        rest = [[*ranges[:axis], *ranges[axis + 1 :]] for ranges in taken]
        whole = [range(extent) for extent in match.extents("x")]
        is_whole = all(one == [*whole[:axis], *whole[axis + 1 :]] for one in rest)
        follow = all(one.stop == other.start for one, other in pairwise(parts))
        if not is_whole or not follow or any(one.step != 1 or not len(one) for one in parts):
            return None
        return range(parts[0].start, parts[-1].stop)

    def bound(name: str) -> Callable[[Match], tuple[int, ...]]:
        return lambda match: (getattr(joint(match), name),)

    return Rule(
        f"{count} adjacent slices joined",
        concat(*(strided_slice(x, **_attributes(prefix)) for prefix in prefixes), axis="axis"),
        strided_slice(
            x,
            axes=lambda match: (match["axis"],),
            begin=bound("start"),
            end=bound("stop"),
            strides=lambda _: (1,),
        ),
        ANY,
        condition=lambda match: joint(match) is not None,
    )


def _parts(count: int) -> Rule:
    """All parts of a split in their order, joined again."""
    numbers = range(count)

    def condition(match: Match) -> bool:
        same = all(
            match[f"parts_{n}"] == match["parts_0"] and match[f"axis_{n}"] == match["axis"]
            for n in numbers
        )
        own = match["parts_0"]
        total = own if isinstance(own, int) else len(own) + 1
        return same and total == count and all(match[f"index_{n}"] == n for n in numbers)

    parts = [split(x, parts=f"parts_{n}", axis=f"axis_{n}", index=f"index_{n}") for n in numbers]
    return Rule(f"{count} parts joined", concat(*parts, axis="axis"), x, ANY, condition=condition)


JOINS = (
    Rule("concat of one", concat(x, axis="axis"), x, ANY),
    Rule(
        "split into one",
        split(x, parts="parts", axis="axis", index="index"),
        x,
        ANY,
        condition=lambda match: match["parts"] in (1, ()),
    ),
    *(_adjacent(count) for count in (2, 3, 4)),
    *(_parts(count) for count in (2, 3, 4)),
)


# Pads, repetitions and broadcasts.

REPETITIONS = (
    Rule(
        "pad by nothing",
        op["pad"](x, widths="widths", mode="mode", value="value"),
        x,
        ANY,
        condition=lambda match: not np.any(match["widths"]),
    ),
    Rule(
        "tile by 1",
        op["tile"](x, repeats="repeats"),
        x,
        ANY,
        condition=lambda match: all(n == 1 for n in match["repeats"]),
    ),
    Rule(
        "repeat by 1",
        op["repeat"](x, repeats="repeats", axis="axis"),
        x,
        ANY,
        condition=lambda match: match["repeats"] == 1,
    ),
    Rule("broadcast to its own shape", broadcast_to(x, shape="s"), x, ANY, condition=_is_own_shape),
    Rule(
        "broadcast of a broadcast",
        broadcast_to(broadcast_to(x, shape="s"), shape="t"),
        broadcast_to(x, shape=output_shape),
        ANY,
    ),
    *(
        Rule(f"broadcast before {n}", op[n](broadcast_to(x, shape="s"), y), op[n](x, y))
        for n in (*BINARY, *COMPARISONS)
    ),
    *(
        Rule(f"broadcast before {n}", op[n](y, broadcast_to(x, shape="s")), op[n](y, x))
        for n in (*BINARY, *COMPARISONS)
        if not op[n].is_commutative
    ),
    Rule(
        "broadcast mask of where",
        op["where"](broadcast_to(mask, shape="s"), x, y),
        op["where"](mask, x, y),
        BOOLEANS,
    ),
    Rule(
        "broadcast choice of where",
        op["where"](mask, broadcast_to(x, shape="s"), y),
        op["where"](mask, x, y),
        ANY,
    ),
    Rule(
        "broadcast other choice of where",
        op["where"](mask, y, broadcast_to(x, shape="s")),
        op["where"](mask, y, x),
        ANY,
    ),
)


# Reductions over axes with one element. The sum that a kernel begins with, +0.0, hides the sign of
# a negative zero.


def _of_one_element(match: Match) -> bool:
    return all(match.shape("x")[axis] == 1 for axis in match["axes"])


def _reduced(name: str) -> Apply:
    return op[name](x, axes="axes", keepdims="keepdims")


REDUCTIONS = (
    *(
        Rule(
            f"{n} of one element",
            _reduced(n),
            reshape(x, shape=output_shape),
            FLOATS | INTEGERS,
            condition=_of_one_element,
        )
        for n in ("max", "min")
    ),
    Rule(
        "sum of one element",
        _reduced("sum"),
        reshape(x, shape=output_shape),
        INTEGERS,
        condition=_of_one_element,
    ),
    *(
        Rule(
            f"{n} of one element",
            _reduced(n),
            reshape(x, shape=output_shape),
            FLOATS,
            FINITE,
            condition=_of_one_element,
        )
        for n in ("sum", "mean")
    ),
)

RULES = (*TRANSPOSES, *VIEWS, *SLICES, *JOINS, *REPETITIONS, *REDUCTIONS)
