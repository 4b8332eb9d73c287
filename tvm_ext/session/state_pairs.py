"""Which outputs of a model are the next run's inputs: its state, found by name, type and shape."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError
from tvm_ext.tensor_spec import TensorSpec, listed

StateKind = Literal["append", "replace"]


@dataclass(frozen=True)
class StatePair:
    """An output that is an input of the next run.

    Attributes
    ----------
    input, output : str
        Their names in the ONNX model.
    kind : str
        "append": the output is the input with new rows behind it. "replace": the output takes the
        input's place.
    axis : int or None
        The axis along which "append" grows.
    """

    input: str
    output: str
    kind: StateKind
    axis: int | None = None


def find_state(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    states: Mapping[str, str] | None = None,
) -> tuple[StatePair, ...]:
    """The pairs of a model, in the order of its inputs.

    ``states`` names pairs as ``{output: input}``, and no others are looked for. Otherwise an input
    and an output are a pair where their names are spelled as exporters spell them
    (``past_key_values.0.key`` and ``present.0.key``, ``h`` and ``hn``, ``cache`` and ``new_cache``)
    and their types and shapes fit each other.

    Raises
    ------
    InputError
        ``states`` names what the model does not have, or what does not fit.
    """
    if states is not None:
        return _stated(inputs, outputs, states)
    by_name = {spec.name: spec for spec in outputs if spec.is_tensor}
    taken: set[str] = set()
    pairs: list[StatePair] = []
    for spec in inputs:
        for name in _next_names(spec.name) if spec.is_tensor else ():
            found = by_name.get(name)
            if found is None or name in taken or not _fits(spec, found):
                continue
            taken.add(name)
            pairs.append(_pair(spec, found))
            break
    return tuple(pairs)


def _stated(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], states: Mapping[str, str]
) -> tuple[StatePair, ...]:
    by_input = {spec.name: spec for spec in inputs}
    by_output = {spec.name: spec for spec in outputs}
    pairs: dict[str, StatePair] = {}
    for output, name in states.items():
        if output not in by_output:
            hint = nearest_hint(str(output), by_output)
            raise InputError(f"states names output {output!r}, which the model lacks; {hint}")
        if name not in by_input:
            hint = nearest_hint(str(name), by_input)
            raise InputError(f"states names input {name!r}, which the model lacks; {hint}")
        source, result = by_input[name], by_output[output]
        if name in pairs or not _fits(source, result):
            raise InputError(
                f"states has output {result.describe()} for input {source.describe()}; expected "
                "one output of the input's type and rank for each input: name such a pair"
            )
        pairs[name] = _pair(source, result)
    return tuple(pairs[spec.name] for spec in inputs if spec.name in pairs)


def places_of(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], pairs: Sequence[StatePair]
) -> tuple[tuple[int, int, int], ...]:
    """Positions of input and output, and the axis, of each state that runs append rows to."""
    into = {spec.name: place for place, spec in enumerate(inputs)}
    out = {spec.name: place for place, spec in enumerate(outputs)}
    return tuple(
        (into[pair.input], out[pair.output], pair.axis)
        for pair in pairs
        if pair.axis is not None
        and new_rows(inputs[into[pair.input]], outputs[out[pair.output]], pair.axis) is not None
    )


def require_state(pairs: Sequence[StatePair], outputs: Sequence[TensorSpec], model: str) -> None:
    """Refuses a model without a state; raises InputError."""
    if not pairs:
        names = listed([spec.name for spec in outputs])
        raise InputError(
            f"{model} has no state: no output ({names}) is named as an input of the next run; "
            "expected pairs such as past_key_values.0.key and present.0.key: name them with "
            "states={'output': 'input'}, or use run"
        )


# Names. Exporters put a word in front or behind, or another word in the name's place.

# What stands for the past, and the words that stand for what comes of it.
_PAST = re.compile(r"past_key_values|past_key_value|past")
_PRESENT = ("present", "present_key_values", "present_key_value")
# Parts of a name that say whether it goes in or comes out.
_DIRECTIONS = (("in", "out"), ("input", "output"), ("old", "new"), ("prev", "next"))
_FRONT = ("new_", "next_", "updated_", "out_", "output_", "cur_")
_BEHIND = ("n", "N", "_n", "_out", "_output", "_new", "_next", "_updated", "Out", "_o")
# Caches are "cached" before a run and "new" after it.
_CACHED = re.compile(r"^cached_")


def _next_names(name: str) -> Iterator[str]:
    """What the output may be called that is this input of the next run, the likeliest first."""
    for word in _PRESENT if _PAST.search(name) else ():
        yield _PAST.sub(word, name)
    for before, after in _DIRECTIONS:
        pattern = rf"(?<![A-Za-z]){before}(?![A-Za-z])"
        # A name of one word says only where a value goes.
        if re.search(pattern, name) and name != before:
            yield re.sub(pattern, after, name)
    if _CACHED.match(name):
        yield _CACHED.sub("new_", name)
    for word in _FRONT:
        yield word + name
    for word in _BEHIND:
        yield name + word
    # ``h0`` or ``h_0`` is the first, and ``hn`` or ``h_n`` the last.
    if match := re.fullmatch(r"(\w*[A-Za-z])(_?)0", name):
        yield f"{match[1]}{match[2]}n"


# Shapes.


def new_rows(
    source: TensorSpec, result: TensorSpec, axis: int | None
) -> tuple[int | str, ...] | None:
    """The sizes whose sum is how many rows a run appends along an axis; None if that is not known.

    ``source`` is an input and ``result`` the output that is the same input of the next run.
    """
    if axis is None or len(result.shape) != len(source.shape):
        return None
    before, after = source.shape[axis], result.shape[axis]
    if not isinstance(before, str) or not isinstance(after, str) or before == after:
        return None
    terms = [term.strip() for term in after.split("+")]
    if terms.count(before) != 1 or not all(re.fullmatch(r"\w+", term) for term in terms):
        return None
    terms.remove(before)
    return tuple(int(term) if term.isdecimal() else term for term in terms)


def _fits(source: TensorSpec, result: TensorSpec) -> bool:
    """Whether an output has the type of an input and, as far as known, its shape."""
    if source.dtype != result.dtype:
        return False
    if result.shape == ("...",):
        return True
    if len(source.shape) != len(result.shape):
        return False
    sizes = zip(source.shape, result.shape, strict=True)
    return all(a == b or isinstance(a, str) or isinstance(b, str) for a, b in sizes)


def _pair(source: TensorSpec, result: TensorSpec) -> StatePair:
    axes = range(len(source.shape))
    growing = [axis for axis in axes if new_rows(source, result, axis) is not None]
    growing = growing or _growing_by_name(source, result)
    if len(growing) == 1:
        return StatePair(source.name, result.name, "append", growing[0])
    return StatePair(source.name, result.name, "replace")


def _growing_by_name(source: TensorSpec, result: TensorSpec) -> list[int]:
    """The axis of positions of a past whose output has sizes that only a run decides.

    So it is with a decoder that has a branch for its first token. What such a decoder has of an
    encoder is computed once.
    """
    if not _PAST.search(source.name) or "encoder" in re.split(r"[._]", source.name):
        return []
    open_axes = [n for n, size in enumerate(source.shape) if isinstance(size, str)]
    # The first of two is the batch.
    axes = open_axes[1:] if len(open_axes) > 1 else open_axes
    if result.shape == ("...",):
        return axes
    sizes = [(source.shape[axis], result.shape[axis]) for axis in axes]
    return [
        axis
        for axis, (before, after) in zip(axes, sizes, strict=True)
        if isinstance(after, str) and after != before
    ]
