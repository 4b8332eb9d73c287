"""Where an operator came from: names of original nodes, carried by the spans of Relax variables.

Passes of TVM keep a variable, or copy its span, when they replace the value bound to it; a call
loses its own span as soon as it is legalised. So the variable is what carries the names, from the
imported graph down to the call of the finished kernel.
"""

from collections.abc import Iterable

from tvm import relax
from tvm.ir.base import SequentialSpan, SourceName, Span


def span_of(names: Iterable[str]) -> Span | SequentialSpan | None:
    """The span that carries ``names``, in order and each once; None for no names."""
    unique = tuple(dict.fromkeys(name for name in names if name))
    spans = [Span(SourceName(name), 0, 0, 0, 0) for name in unique]
    if len(spans) < 2:
        return spans[0] if spans else None
    return SequentialSpan(spans)


def origins_of(*variables: relax.Var) -> tuple[str, ...]:
    """Names of the original nodes that the variables carry, in order and each once."""
    names: dict[str, None] = {}
    for variable in variables:
        span = variable.span
        parts = span.spans if isinstance(span, SequentialSpan) else [span]
        names.update((str(part.source_name.name), None) for part in parts if part is not None)
    return tuple(names)


def describe_origin(*variables: relax.Var) -> str:
    """One readable place for a report: the original nodes, or the variable when none is known."""
    return " + ".join(origins_of(*variables)) or " + ".join(str(v.name) for v in variables)


def retyped_var(variable: relax.Var, ty: relax.Type, names: Iterable[str]) -> relax.Var:
    """A new variable of the same kind and name, with type ``ty`` and the origin ``names``."""
    kind = relax.DataflowVar if isinstance(variable, relax.DataflowVar) else relax.Var
    return kind(variable.name, ty, span_of(names))
