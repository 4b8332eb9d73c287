"""Iterations as calls of functions of levels.

Relax has no loop, and a function that calls itself once an iteration would need a frame of the
process's stack for each. Here a function of level ``k`` calls the one of level ``k - 1`` up to four
times, so that the depth grows with the logarithm of the trip count; scan outputs are joined level
by level and copied as many times, not once an iteration.

    level 0    one iteration: the body, the next iteration number, whether there is another one
    level k    level k-1, and while there is another iteration, level k-1 again
    all        level 0, then level 1, ... up to ``LEVELS``, then itself

With a constant trip count and no other condition, the number of calls at each level are the digits
of the count and nothing is compared in the run.
"""

import tvm
from tvm import relax

from tvm_ext.onnx_frontend.control_flow.functions import branches, function, function_name
from tvm_ext.onnx_frontend.control_flow.loop_calls import Build, Loop, Sizes, loop_function
from tvm_ext.onnx_frontend.control_flow.parameters import Signature
from tvm_ext.onnx_frontend.control_flow.symbolic_types import renewed
from tvm_ext.onnx_frontend.control_flow.values import fields, truth

CALLS_A_LEVEL = 4
LEVELS = 8


def counted(loop: Loop, state: list[relax.Expr], trips: int) -> list[relax.Expr]:
    """The results of a known number of iterations."""
    levels, counts = [loop.body], [1]
    while counts[-1] * CALLS_A_LEVEL <= trips:

        def build(values: list[relax.Expr], sizes: Sizes) -> relax.Expr:
            inner, rest, parts = values[: loop.state], values[loop.state :], []
            for _ in range(CALLS_A_LEVEL):
                _, inner, part = loop.call(levels[-1], inner, rest, sizes)
                parts.append(part)
            return relax.Tuple([*inner, *loop.joined(parts)])

        levels.append(loop_function(loop, f"level{len(levels)}", build, straight=True))
        counts.append(counts[-1] * CALLS_A_LEVEL)
    sizes = Sizes({var: var for var in loop.signature.fixed})
    parts = []
    for level, count in zip(reversed(levels), reversed(counts), strict=True):
        for _ in range(trips // count):
            _, state, part = loop.call(level, state, loop.around, sizes)
            parts.append(part)
        trips %= count
    return [*state[1:], *loop.joined(parts)]


def conditional(loop: Loop, state: list[relax.Expr], first: relax.Expr) -> list[relax.Expr]:
    """The results of iterations as long as their condition holds."""
    levels = [loop.body]
    for level in range(1, LEVELS + 1):
        levels.append(loop_function(loop, f"level{level}", _level_of(loop, levels[-1])))
    # To call itself, the function must have a name and a type: those of one that does not.
    every = loop_function(loop, "all", _all_of(loop, levels, None))
    again = loop_function(loop, "all", _all_of(loop, levels, every), into=every)
    symbols = {var: var for var in loop.signature.fixed}
    types = [renewed(ty, symbols) for ty in loop.signature.types[1 : loop.state]]
    sizes = Sizes(symbols)
    types += [sizes.stacked(index, ty) for index, ty in enumerate(loop.elements)]
    if truth(first):
        arguments = loop.signature.arguments([*state, *loop.around], symbols)
        return fields(loop.bb, loop.bb.emit(relax.Call(again, arguments)), types)
    flagged = Signature(loop.signature.fixed, (first.ty, *loop.signature.types))
    parameters, (flag, *values), inner = flagged.parameters()

    def build() -> relax.Expr:
        arguments = loop.signature.arguments(values, inner)
        return branches(
            loop.bb,
            parameters,
            flag,
            lambda: relax.Call(again, arguments),
            lambda: relax.Tuple([*values[1 : loop.state], *loop.nothing(inner)]),
        )

    func = function(loop.bb, parameters, build, straight=False)
    guarded = loop.bb.add_func(func, function_name(loop.name, "loop"))
    arguments = flagged.arguments([first, *state, *loop.around], symbols)
    return fields(loop.bb, loop.bb.emit(relax.Call(guarded, arguments)), types)


def _level_of(loop: Loop, callee: tvm.ir.GlobalVar) -> Build:
    def build(values: list[relax.Expr], sizes: Sizes) -> relax.Expr:
        rest = values[loop.state :]

        def go_on(state: list[relax.Expr], parts: list[list[relax.Expr]]) -> relax.Expr:
            more, state, part = loop.call(callee, state, rest, sizes)
            parts = [*parts, part]

            def done() -> relax.Expr:
                return relax.Tuple([more, *state, *loop.joined(parts)])

            if len(parts) == CALLS_A_LEVEL:
                return done()
            return branches(loop.bb, sizes.parameters, more, lambda: go_on(state, parts), done)

        return go_on(values[: loop.state], [])

    return build


def _all_of(loop: Loop, levels: list[tvm.ir.GlobalVar], itself: tvm.ir.GlobalVar | None) -> Build:
    def build(values: list[relax.Expr], sizes: Sizes) -> relax.Expr:
        rest = values[loop.state :]

        def repeat(state: list[relax.Expr], parts: list[list[relax.Expr]]) -> relax.Expr:
            arguments = loop.signature.arguments([*state, *rest], sizes.symbols)
            types = [None] * (loop.state - 1)
            types += [sizes.stacked(index, ty) for index, ty in enumerate(loop.elements)]
            found = fields(loop.bb, loop.bb.emit(relax.Call(itself, arguments)), types)
            joined = loop.joined([*parts, found[loop.state - 1 :]])
            return relax.Tuple([*found[: loop.state - 1], *joined])

        def go_on(level: int, state: list[relax.Expr], parts: list[list[relax.Expr]]) -> relax.Expr:
            if level == len(levels):
                return repeat(state, parts)
            more, state, part = loop.call(levels[level], state, rest, sizes)
            parts = [*parts, part]

            def done() -> relax.Expr:
                return relax.Tuple([*state[1:], *loop.joined(parts)])

            if level + 1 == len(levels) and itself is None:
                return done()
            return branches(
                loop.bb, sizes.parameters, more, lambda: go_on(level + 1, state, parts), done
            )

        return go_on(0, values[: loop.state], [])

    return build
