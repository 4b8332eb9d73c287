"""A program that needs less memory: its steps in another order, and cheap values computed again.

A value that is needed early and late, and not in between, can be computed a second time where it is
needed late: rematerialization. T. Chen et al., "Training Deep Nets with Sublinear Memory Cost",
2016; M. Kumar et al., "Efficient Rematerialization for Deep Networks", NeurIPS 2019. Which value is
taken decides the quotient of the bytes that it frees above the limit, summed over all steps, and of
the predicted seconds that it costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm_ext.memory_planner.program import Program, Step
from tvm_ext.memory_planner.schedule_order import Operation, order_for_memory

# Steps that are computed again for one value at most, one as an operand of the next.
_DEEPEST = 4
# Steps of programs that are looked at, all candidates together: some seconds.
_MOST_STEPS_LOOKED_AT = 2_000_000
_ORDER_SECONDS = 1.0
# What a copy that costs no time counts as, so that quotients stay finite.
_LEAST_SECONDS = 1e-9


@dataclass(frozen=True)
class _Copy:
    """A candidate: a program, and what it is worth."""

    program: Program
    excess: int
    seconds: float


def fit_to_memory(program: Program, target: int) -> Program:
    """The program with as little above ``target`` bytes alive as was found.

    Parameters
    ----------
    program : Program
        In an order that can run.
    target : int
        Bytes that may be alive at one time. The search ends where no step needs more.

    Returns
    -------
    Program
        With a peak that is not above that of ``program``, which it is itself where nothing helps.
        Equal arguments give equal programs.
    """
    best = current = _reordered(program, target)
    looked_at = 0
    while current.peak > target and looked_at < _MOST_STEPS_LOOKED_AT:
        candidates = list(_copies(current, target))
        looked_at += sum(len(one.program.steps) for one in candidates)
        excess = current.excess(target)
        better = [one for one in candidates if one.excess < excess]
        if better:
            price = current.seconds
            current = max(
                better,
                key=lambda one: (excess - one.excess) / max(_LEAST_SECONDS, one.seconds - price),
            ).program
        else:
            other = _reordered(current, target)
            if other.excess(target) >= excess:
                break
            current = other
        if current.peak < best.peak:
            best = current
    return best


# Orders.


def _reordered(program: Program, target: int) -> Program:
    """The program in an order with less above ``target``, or itself."""
    if program.peak <= target:
        return program
    steps: list[Step] = []
    for part in _between_barriers(program.steps):
        steps += _ordered(program, part, target)
    other = program.with_steps(steps)
    is_better = (other.peak, other.excess(target)) < (program.peak, program.excess(target))
    return other if is_better else program


def _between_barriers(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Steps that may change places; a barrier stands alone."""
    part: list[Step] = []
    for step in steps:
        if step.is_barrier:
            yield part
            yield [step]
            part = []
        else:
            part.append(step)
    yield part


def _ordered(program: Program, part: list[Step], target: int) -> list[Step]:
    if len(part) < 3:
        return part
    inside = {id(step) for step in part}
    makers = {value: number for number, step in enumerate(part) for value in step.results}
    held = _held_in(program, part, makers)
    operations = []
    for number, step in enumerate(part):
        read = [makers[value] for value in step.arguments if value in makers]
        # Whoever reads a result that lies in an operand's memory keeps the operand alive.
        read += [held[one] for one in read if one in held]
        is_kept = any(
            id(program.steps[at]) not in inside
            for value in step.results
            for at in program.uses.get(value, ())
        )
        size = 0 if number in held else sum(map(program.padded, step.results))
        inputs = tuple(dict.fromkeys(read))
        behind = _readers_ahead(part, number)
        operations.append(Operation(str(number), inputs, size, step.workspace, is_kept, behind))
    found = order_for_memory(operations, peak=target, seconds=_ORDER_SECONDS)
    return [part[number] for number in found.order]


def _readers_ahead(part: list[Step], number: int) -> tuple[int, ...]:
    """Steps that read what a step overwrites: all that do run ahead of it."""
    return tuple(
        other
        for other, step in enumerate(part[:number])
        if not set(part[number].overwrites).isdisjoint(step.arguments)
    )


def _held_in(program: Program, part: list[Step], makers: dict[int, int]) -> dict[int, int]:
    """By step with one result that lies in an operand read by nobody else: who computes that."""
    found: dict[int, int] = {}
    for number, step in enumerate(part):
        kernel = step.kernel
        if kernel is None or not kernel.in_place or len(step.results) != 1:
            continue
        for place in kernel.in_place[0][1]:
            operand = step.arguments[place]
            if operand is None or operand not in makers or len(program.uses[operand]) != 1:
                continue
            if len(part[makers[operand]].results) == 1 and operand not in program.outside:
                found[number] = found.get(makers[operand], makers[operand])
                break
    return found


# Values that are computed again.


def _copies(program: Program, target: int) -> Iterator[_Copy]:
    """Programs that compute a value again which is alive at the peak and not needed there."""
    live = program.live_bytes
    peak = live.index(max(live))
    for value, uses in program.uses.items():
        made = program.makers.get(value)
        if made is None or made >= peak or value in program.outside or peak in uses:
            continue
        later = [at for at in uses if at > peak]
        if not later or program.steps[made].kernel is None:
            continue
        if any(program.steps[at].kernel is None for at in later):
            continue
        seen: set[int] = set()
        for depth in range(_DEEPEST):
            again = _needed_again(program, made, later[0], depth)
            if again is None or len(again) in seen:
                continue
            seen.add(len(again))
            other = _computed_again(program, again, later[0])
            yield _Copy(other, other.excess(target), other.seconds)


def _needed_again(program: Program, made: int, use: int, depth: int) -> list[int] | None:
    """Positions of the steps that run again ahead of step ``use``, in their order.

    Operands that are not alive there are computed again up to ``depth`` steps back; those further
    back are kept alive. None where a barrier stands between.
    """
    found: set[int] = set()
    waiting = [(made, depth)]
    while waiting:
        at, left = waiting.pop()
        step = program.steps[at]
        found.add(at)
        for value in step.arguments if left else ():
            if value is None or value in program.outside:
                continue
            maker = program.makers.get(value)
            if maker is None or program.steps[maker].kernel is None:
                continue
            if program.uses[value][-1] < use and maker not in found:
                waiting.append((maker, left - 1))
    first = min(found)
    if any(step.is_barrier for step in program.steps[first:use]):
        return None
    read = {value for at in found for value in program.steps[at].arguments}
    if any(program.overwritten.get(value, use) < use for value in read if value is not None):
        return None
    return sorted(found)


def _computed_again(program: Program, again: Sequence[int], use: int) -> Program:
    """The program with these steps once more ahead of ``use``, for all that reads them behind."""
    sizes = list(program.sizes)
    others: dict[int, int] = {}
    copies = []
    for at in again:
        step = program.steps[at]
        arguments = _renamed(step, others)
        for value in step.results:
            others[value] = len(sizes)
            sizes.append(program.sizes[value])
        results = tuple(others[value] for value in step.results)
        copies.append(replace(step, arguments=arguments, results=results))
    behind = [_reading(step, others) for step in program.steps[use:]]
    steps = [*program.steps[:use], *copies, *behind]
    return _without_unused(replace(program, steps=tuple(steps), sizes=tuple(sizes)))


def _reading(step: Step, others: dict[int, int]) -> Step:
    """A step that reads other values; one that is no kernel call reads what it read."""
    if step.kernel is None or others.keys().isdisjoint(step.arguments):
        return step
    return replace(step, arguments=_renamed(step, others))


def _renamed(step: Step, others: dict[int, int]) -> tuple[int | None, ...]:
    return tuple(None if one is None else others.get(one, one) for one in step.arguments)


def _without_unused(program: Program) -> Program:
    """Without calls whose results nobody reads any more."""
    read = set(program.outside)
    kept = []
    for step in reversed(program.steps):
        if step.kernel is None or not read.isdisjoint(step.results):
            kept.append(step)
            read.update(value for value in step.arguments if value is not None)
    return program.with_steps(kept[::-1])
