"""``register_pass``: the way for users to add passes, as decorator and as call."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tvm

from tvm_ext.errors import PassError
from tvm_ext.passes.registry import Level, PassEntry, add, first_line

PassLike = Any


def register_pass(
    pass_like: PassLike | None = None,
    *,
    level: Level = "graph",
    name: str = "",
    after: str = "",
    before: str = "",
    source: str = "user",
) -> Any:
    """Registers a pass that runs in every later ``compile``, at every optimisation level.

    Parameters
    ----------
    pass_like : tvm.transform.Pass, function, or class
        A pass; a function ``(IRModule, PassContext) -> IRModule`` or ``IRModule -> IRModule``; or a
        class whose instances are passes (such as one decorated with
        ``tvm.transform.module_pass``). Left out when used as a decorator.
    level : {"graph", "schedule", "tile", "target"}
        Where it runs: on Relax; on kernels before a template chose their loops (a kernel with the
        attribute ``tirx.is_scheduled`` is then left as it is); on kernels after; on the finished
        module before code generation.
    name : str
        How the pass is called; the function's or class's name when left out.
    after, before : str
        Name of a registered pass of the same level to run behind or ahead of. Otherwise the pass
        runs at the end of its level.

    Returns
    -------
    The object that was given, so that it can still be used by its name.

    Raises
    ------
    PassError
        The name is taken, the level or neighbour is unknown, or the object is not a pass.
    """
    if pass_like is None:
        return functools.partial(
            register_pass, level=level, name=name, after=after, before=before, source=source
        )
    if after and before:
        raise PassError(
            f"a pass was given after='{after}' and before='{before}'; expected one: drop the other"
        )
    own_name = name or _name_of(pass_like)
    add(
        PassEntry(
            name=own_name,
            level=level,
            factory=_factory(pass_like, own_name),
            source=source,
            summary=first_line(getattr(pass_like, "__doc__", "")),
            doc=inspect.getdoc(pass_like) or "",
            after=after,
            before=before,
            in_pipelines=False,
        )
    )
    return pass_like


def _name_of(pass_like: PassLike) -> str:
    if isinstance(pass_like, tvm.transform.Pass):
        return str(pass_like.info.name)
    found = getattr(pass_like, "__name__", "")
    if not found or found == "<lambda>":
        raise PassError("a pass without a name was given: pass name='...'")
    return str(found)


def _factory(pass_like: PassLike, name: str) -> Callable[..., tvm.transform.Pass]:
    if isinstance(pass_like, tvm.transform.Pass):
        return lambda: pass_like
    if isinstance(pass_like, type):
        return pass_like
    if not callable(pass_like):
        raise PassError(
            f"'{name}' is a {type(pass_like).__name__}; expected a tvm.transform.Pass, a class of "
            "passes, or a function of an IRModule"
        )
    run = _two_arguments(pass_like)

    def checked(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        after = run(mod, ctx)
        if not isinstance(after, tvm.IRModule):
            raise PassError("it returned something that is no module")
        return after

    return lambda: tvm.transform.module_pass(checked, opt_level=0, name=name)


def _two_arguments(function: Callable[..., tvm.IRModule]) -> Callable[..., tvm.IRModule]:
    """TVM hands (module, context) to a pass; a function of the module alone is welcome too."""
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return lambda mod, ctx: function(mod)
    # TVM's decorator wants a plain function that it may set attributes on.
    return lambda mod, ctx: function(mod, ctx)
