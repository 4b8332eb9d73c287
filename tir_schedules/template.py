"""What a template is: it schedules the kernels that it knows and says why it leaves the others.

A template asks for each decision (tile size, order, threads) by name, with the options that make
sense for the kernel and the machine, and its own default among them; options may depend on
decisions taken before. A tuner samples the same. What finds out of what form a kernel is, or takes
decisions, raises NotApplicable as the template does.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from tvm import s_tir, tirx

from tvm_ext.hardware.machine import MachineDescription


class DecisionError(ValueError):
    """A decision that was asked for is not among the options that the template has now."""


@dataclass(frozen=True)
class Knob:
    """One decision as a template offered it.

    Attributes
    ----------
    name : str
        Unique among the decisions of one schedule.
    options : tuple[int, ...]
        What may be chosen, ascending.
    default : int
        The default heuristic, one of ``options``.
    """

    name: str
    options: tuple[int, ...]
    default: int


class Decisions(Protocol):
    """Answers what a template asks."""

    def pick(self, name: str, options: Iterable[int], default: int) -> int:
        """One of ``options``, or ``default``, for the decision called ``name``."""
        ...


class DefaultDecisions:
    """Every decision is the template's own; which others there are, nobody works out."""

    def pick(self, name: str, options: Iterable[int], default: int) -> int:
        """See ``Decisions.pick``: ``default``."""
        return default

    def unmet(self) -> list[str]:
        """See ``FixedDecisions.unmet``: nothing was stated."""
        return []


DEFAULT_DECISIONS = DefaultDecisions()

StatedDecisions: TypeAlias = Mapping[str, Mapping[str, int]]
"""Decisions that a user states, by the name of the template and that of the decision."""


class FixedDecisions:
    """Decisions given by name; the template's own for the names that are not given.

    Parameters
    ----------
    given : mapping of str to int
        The decisions.
    lenient : bool
        Whether a given value that is not among the options is replaced by the template's own.

    Attributes
    ----------
    knobs : dict[str, Knob]
        What the template asked so far, in order.
    values : dict[str, int]
        What it was answered.
    """

    def __init__(self, given: Mapping[str, int] | None = None, lenient: bool = False) -> None:
        self._given = dict(given or {})
        self._lenient = lenient
        self.knobs: dict[str, Knob] = {}
        self.values: dict[str, int] = {}

    def pick(self, name: str, options: Iterable[int], default: int) -> int:
        """See ``Decisions.pick``.

        Raises
        ------
        DecisionError
            The given value is not among the options, and the decisions are not lenient.
        """
        knob = Knob(name, tuple(sorted({*options, default})), default)
        self.knobs[name] = knob
        self.values[name] = self._answer(knob)
        return self.values[name]

    def _answer(self, knob: Knob) -> int:
        value = self._given.get(knob.name, knob.default)
        if value in knob.options:
            return value
        if self._lenient:
            return knob.default
        raise DecisionError(
            f"decision {knob.name}={value} is none of the options {_listed(knob.options)}"
        )

    def free(self) -> dict[str, int]:
        """What was answered where there was more than one option."""
        return {name: self.values[name] for name, k in self.knobs.items() if len(k.options) > 1}

    def unmet(self) -> list[str]:
        """What was given and not followed, with the reason, one text each."""
        values = self.values.items()
        replaced = [
            f"{name}={self._given[name]} is none of {_listed(self.knobs[name].options)}"
            for name, value in values
            if name in self._given and self._given[name] != value
        ]
        asked = ", ".join(self.knobs) or "none"
        return replaced + [f"there is no decision {n}, only {asked}" for n in self.unused()]

    def unused(self) -> list[str]:
        """Names that were given and that the template did not ask for."""
        return [name for name in self._given if name not in self.knobs]


def stated_decisions(
    stated: StatedDecisions, template: "Template"
) -> FixedDecisions | DefaultDecisions:
    """What a user states for a template; values that it does not offer are its own."""
    given = stated.get(template.name)
    return FixedDecisions(given, lenient=True) if given else DEFAULT_DECISIONS


class SampledDecisions(FixedDecisions):
    """Every decision is drawn, each of the options that those before it leave as often.

    Parameters
    ----------
    generator : random.Random
        What draws.
    """

    def __init__(self, generator: random.Random) -> None:
        super().__init__()
        self._generator = generator

    def _answer(self, knob: Knob) -> int:
        return self._generator.choice(knob.options)


@dataclass(frozen=True)
class NumberedDecisions:
    """The decisions of one of a kernel's blocks, named after its number: "vectors_2"."""

    decisions: Decisions
    number: int

    def pick(self, name: str, options: Iterable[int], default: int) -> int:
        """See ``Decisions.pick``."""
        return self.decisions.pick(f"{name}_{self.number}", options, default)


Candidate = TypeVar("Candidate", bound=Hashable)


def pick_each(
    candidates: Iterable[Candidate],
    attributes: Mapping[str, str],
    cost: Callable[[Candidate], Any],
    decisions: Decisions,
) -> Candidate:
    """One of ``candidates``, of which there are some: by default the cheapest, the first of these.

    ``attributes`` by the decisions' names: what is picked one after the other, each from what those
    before leave.
    """
    costs = {one: cost(one) for one in candidates}
    left = list(costs)
    for name, attribute in attributes.items():
        best = min(left, key=costs.__getitem__)
        options = {getattr(one, attribute) for one in left}
        picked = decisions.pick(name, options, getattr(best, attribute))
        left = [one for one in left if getattr(one, attribute) == picked]
    return left[0]


def _listed(options: tuple[int, ...]) -> str:
    return ", ".join(str(option) for option in options)


class Template(Protocol):
    """One way to schedule a family of kernels for one kind of machine.

    Attributes
    ----------
    name : str
        Unique among the templates of a backend.
    machine_type : type[MachineDescription]
        What ``apply`` gets as its machine: it is asked for no other, see ``apply_template``.
    """

    @property
    def name(self) -> str:
        """See the class."""
        ...

    @property
    def machine_type(self) -> type[MachineDescription]:
        """See the class."""
        ...

    def apply(self, func: tirx.PrimFunc, machine: Any, decisions: Decisions) -> s_tir.Schedule:
        """A schedule for ``func``, which is left unchanged.

        ``decisions`` answers what the template has to decide: by default, or as a tuner says.

        Raises
        ------
        NotApplicable
            The kernel is none that the template schedules; says why.
        """
