"""A program as the calls that it makes, and how many bytes are alive during each of them.

The figures are those of a plan that reaches its bound. They follow the rules by which buffers share
memory: a result may be written into an operand that is read last by the same call, the operands of
a concatenation may be written as parts of its result, and a slice may be a view.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property


@dataclass(frozen=True)
class KernelTraits:
    """What is known of a kernel that computes its results from its arguments and does nothing else.

    Attributes
    ----------
    name : str
        Calls of one name run the same code, which writes in place in all of them or in none.
    seconds : float
        Predicted time of a call.
    in_place : tuple
        By the number of a result, the places of arguments whose memory it may have, best first.
    moved : tuple
        For a kernel that only copies: the place of each argument with its distance in bytes from
        the beginning of the result. One alone, with a distance of 0 or less, is a slice.
    """

    name: str
    seconds: float = 0.0
    in_place: tuple[tuple[int, tuple[int, ...]], ...] = ()
    moved: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Attributes
    ----------
    source : int
        The position of the step in the program as it was given; a step that computes values again
        has that of the first one.
    arguments : tuple of int or None
        The values that it reads, by place; None for what is no planned value, as a weight.
    results : tuple of int
        The values that it computes.
    kernel : KernelTraits, optional
        Of the kernel that is called. A step without one is not run again.
    workspace : int
        Bytes that it needs only while it runs.
    is_barrier : bool
        Whether it may have effects, so that no other step moves across it.
    overwrites : tuple of int
        Values from outside that it reads, and in whose memory it writes a result where it is the
        last to read them.
    """

    source: int
    arguments: tuple[int | None, ...]
    results: tuple[int, ...]
    kernel: KernelTraits | None = None
    workspace: int = 0
    is_barrier: bool = False
    overwrites: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """Steps in the order in which they run, and the values that they compute.

    Attributes
    ----------
    steps : tuple[Step, ...]
        Each value is computed by one of them, ahead of those that read it.
    sizes : tuple[int, ...]
        Bytes of each value.
    outside : frozenset[int]
        Values that are not in the arena, as those that the program returns.
    alignment : int
        Bytes of which each size is rounded up to a multiple.
    has_views : bool
        Whether copies may become views.
    """

    steps: tuple[Step, ...]
    sizes: tuple[int, ...]
    outside: frozenset[int] = frozenset()
    alignment: int = 64
    has_views: bool = True

    @cached_property
    def live_bytes(self) -> list[int]:
        """Bytes alive during each step, by the better of the plans with and without views."""
        alone = _Lifetimes(self, views=False).live_bytes()
        if not self.has_views:
            return alone
        views = _Lifetimes(self, views=True)
        if not views.roots:
            return alone
        found = views.live_bytes()
        return found if max(found, default=0) <= max(alone, default=0) else alone

    @property
    def peak(self) -> int:
        """The largest number of bytes that are alive during a step."""
        return max(self.live_bytes, default=0)

    @property
    def seconds(self) -> float:
        """Predicted time of all calls."""
        return sum(step.kernel.seconds for step in self.steps if step.kernel is not None)

    def excess(self, target: int) -> int:
        """The sum over all steps of the bytes that are alive above ``target``."""
        return sum(live - target for live in self.live_bytes if live > target)

    @cached_property
    def makers(self) -> dict[int, int]:
        """By value, the position of the step that computes it."""
        return {value: at for at, step in enumerate(self.steps) for value in step.results}

    @cached_property
    def uses(self) -> dict[int, list[int]]:
        """By value, the positions of the steps that read it, in their order."""
        found: dict[int, list[int]] = {}
        for at, step in enumerate(self.steps):
            for value in dict.fromkeys(step.arguments):
                if value is not None:
                    found.setdefault(value, []).append(at)
        return found

    @cached_property
    def overwritten(self) -> dict[int, int]:
        """By value from outside, the position of the step that writes a result in its memory."""
        return {value: at for at, step in enumerate(self.steps) for value in step.overwrites}

    def padded(self, value: int) -> int:
        """Bytes that a value takes in the arena."""
        if value in self.outside:
            return 0
        return -(-self.sizes[value] // self.alignment) * self.alignment

    def needed_by(self, step: Step) -> int:
        """Bytes that a step needs, whatever else is alive: no order and no copy goes below."""
        arguments = {one for one in step.arguments if one is not None}
        results = sum(map(self.padded, step.results))
        operands = sum(map(self.padded, arguments))
        kernel = step.kernel
        if kernel is None:
            return results + operands + step.workspace
        if kernel.moved and self.has_views:
            return max(results, operands)
        # Each result that may lie in an operand needs no bytes of its own.
        spared = sum(
            self.padded(step.results[number])
            for number, places in kernel.in_place
            if any(step.arguments[place] in arguments - self.outside for place in places)
        )
        return max(operands, results + operands + step.workspace - spared)

    @property
    def lower_bound(self) -> int:
        """Bytes that the step that needs most needs alone."""
        return max(map(self.needed_by, self.steps), default=0)

    def with_steps(self, steps: Sequence[Step]) -> "Program":
        """The same values, computed by these steps."""
        return replace(self, steps=tuple(steps))


@dataclass
class _Lifetimes:
    """From where to where the memory of each value is needed, where some share it."""

    program: Program
    views: bool
    # The value whose memory holds that of another one.
    roots: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)
    # Steps that are not run, for their results are views.
    dropped: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.views:
            self._find_views()
            if not self.roots:
                return
        for at, step in enumerate(self.program.steps):
            if at in self.dropped:
                continue
            for value in step.results:
                self._note(value, at)
            for argument in step.arguments:
                if argument is not None:
                    self._note(argument, at)

    def live_bytes(self) -> list[int]:
        """Bytes alive during each step."""
        program = self.program
        within = self._in_place()
        begins, ends = dict(self.first), dict(self.last)
        # Later results first, so that a chain ends up in its first operand.
        for result in sorted(within, key=lambda value: -begins[value]):
            operand = within[result]
            ends[operand] = max(ends[operand], ends.pop(result))
            begins[operand] = min(begins[operand], begins.pop(result))
        changes = [0] * (len(program.steps) + 1)
        for value, begin in begins.items():
            size = program.padded(value)
            changes[begin] += size
            changes[ends[value] + 1] -= size
        found, live = [], 0
        for at, step in enumerate(program.steps):
            live += changes[at]
            found.append(live + step.workspace)
        return found

    def root(self, value: int) -> int:
        """The value whose memory holds that of ``value``."""
        while value in self.roots:
            value = self.roots[value]
        return value

    def _note(self, value: int, at: int) -> None:
        root = self.root(value)
        self.first[root] = min(self.first.get(root, at), at)
        self.last[root] = max(self.last.get(root, at), at)

    def _find_views(self) -> None:
        """Notes which values are parts of others, in the order of the steps."""
        parts: set[int] = set()
        for at, step in enumerate(self.program.steps):
            kernel = step.kernel
            if kernel is None or not kernel.moved or len(step.arguments) != len(kernel.moved):
                continue
            given = [step.arguments[place] for place, _ in kernel.moved]
            operands = [one for one in given if one is not None]
            (result,) = step.results
            if len(operands) < len(given) or not self.program.outside.isdisjoint(
                {*operands, result}
            ):
                continue
            if len(operands) == 1:
                if result not in parts and kernel.moved[0][1] <= 0:
                    self.roots[result] = operands[0]
                    self.dropped.add(at)
            elif self._may_be_parts(operands, result):
                parts.update(operands)
                self.roots.update(dict.fromkeys(operands, result))
                self.dropped.add(at)

    def _may_be_parts(self, operands: Sequence[int], result: int) -> bool:
        """Whether these values, each once, are all of the result of a concatenation."""
        if len({*operands, result}) != len(operands) + 1 or not self.roots.keys().isdisjoint(
            operands
        ):
            return False
        sizes = self.program.sizes
        return sum(sizes[one] for one in operands) == sizes[result]

    def _in_place(self) -> dict[int, int]:
        """The operand in whose memory each result is written, where one is."""
        calls: dict[str, list[tuple[int, Step]]] = {}
        for at, step in enumerate(self.program.steps):
            if step.kernel is not None and step.kernel.in_place and at not in self.dropped:
                calls.setdefault(step.kernel.name, []).append((at, step))
        found: dict[int, int] = {}
        for made in calls.values():
            for number, place in self._pairs(made):
                held = {step.results[number]: step.arguments[place] for _, step in made}
                found.update({result: one for result, one in held.items() if one is not None})
        return found

    def _pairs(self, made: Sequence[tuple[int, Step]]) -> Iterator[tuple[int, int]]:
        """Results of a kernel with the operands whose memory they take, in every call of it."""
        taken: set[int] = set()
        kernel = made[0][1].kernel
        for number, places in kernel.in_place if kernel is not None else ():
            for place in places:
                if place not in taken and all(
                    self._ends_at(at, step, number, place) for at, step in made
                ):
                    taken.add(place)
                    yield number, place
                    break

    def _ends_at(self, at: int, step: Step, number: int, place: int) -> bool:
        """Whether a call is the last to read an operand, once, and its result may lie there."""
        operand, result = step.arguments[place], step.results[number]
        if operand is None or {operand, result} & self.program.outside:
            return False
        if operand in self.roots or result in self.roots or self.last.get(operand) != at:
            return False
        if step.arguments.count(operand) != 1 or self.first.get(result) != at:
            return False
        return self.program.sizes[operand] == self.program.sizes[result]
