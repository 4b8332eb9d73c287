"""Builds private Relax functions and the branches in them."""

import re
from collections.abc import Callable

import tvm
from tvm import relax


def function(
    bb: relax.BlockBuilder,
    parameters: list[relax.Var],
    build: Callable[[], relax.Expr],
    straight: bool = True,
) -> relax.Function:
    """A private function that returns what ``build`` emits; ``straight`` when it holds no If."""
    bb.begin_scope(parameters)
    if straight:
        bb._begin_dataflow_block()
    else:
        bb._begin_binding_block()
    try:
        result = bb.emit_output(build()) if straight else build()
    except BaseException:
        # Another branch may go on where this one failed.
        bb._end_block()
        bb.end_scope()
        raise
    body = _sequence(bb, parameters, result)
    return relax.Function(parameters, body, body.ty)


def _sequence(
    bb: relax.BlockBuilder, parameters: list[relax.Var], result: relax.Expr
) -> relax.SeqExpr:
    """Ends the block and the scope, and types the result by the parameters' symbols alone.

    In the scope of the block a size that is only known inside would stay in the type.
    """
    block = bb._end_block()
    bb.end_scope()
    bb.begin_scope(parameters)
    body = bb.normalize(relax.SeqExpr([block], result))
    bb.end_scope()
    return body


def branches(
    bb: relax.BlockBuilder,
    parameters: list[relax.Var],
    condition: relax.Expr,
    chosen: Callable[[], relax.Expr],
    otherwise: Callable[[], relax.Expr],
) -> relax.Var:
    """Emits an If in a function of these parameters; the callables emit its branches."""
    sides = []
    for build in (chosen, otherwise):
        bb.begin_scope(parameters)
        bb._begin_binding_block()
        result = build()
        if not isinstance(result, relax.Var):
            result = bb.emit(result)
        sides.append(_sequence(bb, parameters, result))
    return bb.emit(relax.If(condition, *sides))


def function_name(*parts: str) -> str:
    """A name for a function from a node's name."""
    return re.sub(r"[^0-9A-Za-z_]", "_", "_".join(parts))


def without_unused_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module without functions that ``main`` does not reach: attempts to type a body."""
    reached: dict[str, None] = {}
    waiting = ["main"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached[name] = None
        func = mod[name]
        if isinstance(func, relax.Function):
            waiting += [str(gv.name_hint) for gv in relax.analysis.all_global_vars(func)]
    kept = {gv: func for gv, func in mod.functions.items() if str(gv.name_hint) in reached}
    return tvm.IRModule(kept, attrs=mod.attrs)
