"""All schedules that our templates offer for one kernel."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.decisions import Chosen, Drawn, Knob
from tvm_ext.tir_schedules.recorded_schedule import RecordedSchedule, template_trace
from tvm_ext.tir_schedules.select import accepting_templates
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tuning.candidate import Candidate, Finish, candidate
from tvm_ext.tuning.task import KernelTask

Key = tuple[str, tuple[tuple[str, int], ...]]
"""A template and its decisions."""


@dataclass(frozen=True)
class Point:
    """One schedule of the space, with the decisions around it.

    Attributes
    ----------
    candidate : Candidate
        The scheduled kernel.
    template : str
        Who scheduled it.
    values : dict[str, int]
        The decisions that had more than one option.
    knobs : dict[str, Knob]
        Those decisions' options.
    """

    candidate: Candidate
    template: str
    values: dict[str, int]
    knobs: dict[str, Knob] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What tells it from other points."""
        return key_of(self.template, self.values)


def key_of(template: str, values: Mapping[str, int]) -> Key:
    """What tells a point from others."""
    return template, tuple(sorted(values.items()))


class TemplateSpace:
    """Points are made when they are asked for, and kept.

    Attributes
    ----------
    templates : list[str]
        Those that take the kernel, the one that is used without a record first.
    """

    def __init__(self, task: KernelTask, machine: Machine, finish: Finish) -> None:
        self._task = task
        self._machine = machine
        self._finish = finish
        found = accepting_templates(task.workload["main"], machine)
        self._templates = {template.name: template for template in found}
        self._points: dict[Key, Point | None] = {}
        self.templates = list(self._templates)

    def default(self, template: str) -> Point | None:
        """The template's closed-form choice."""
        return self.point(template, {})

    def closed_form(self) -> Candidate | None:
        """What the kernel gets without a record; None when its loops are left as they are."""
        point = self.default(self.templates[0]) if self.templates else None
        return point.candidate if point is not None else None

    def point(self, template: str, values: Mapping[str, int]) -> Point | None:
        """The schedule with these decisions, and the template's own for all others.

        A value that is no option beside the others is replaced as well, so the point that is found
        may have other decisions. None where the template refuses.
        """
        asked = key_of(template, values)
        if asked not in self._points:
            found = self._made(template, Chosen(values, lenient=True))
            self._points[asked] = found
            if found is not None:
                self._points.setdefault(found.key, found)
        return self._points[asked]

    def neighbours(self, point: Point) -> Iterator[tuple[str, dict[str, int]]]:
        """Decisions that differ in one place: next options first, then those further away."""
        distances = max((len(knob.options) for knob in point.knobs.values()), default=1)
        for distance in range(1, distances):
            for name, knob in point.knobs.items():
                at = knob.options.index(point.values[name])
                for other in (at - distance, at + distance):
                    if 0 <= other < len(knob.options):
                        yield point.template, {**point.values, name: knob.options[other]}

    def anywhere(self, generator: random.Random) -> Point | None:
        """A random schedule of a random template; None if there is nothing to decide, or if the
        template refuses what was drawn.
        """
        open_to = [name for name in self.templates if self._has_knobs(name)]
        if not open_to:
            return None
        found = self._made(generator.choice(open_to), Drawn(generator))
        return self._points.setdefault(found.key, found) if found is not None else None

    def _has_knobs(self, template: str) -> bool:
        default = self.default(template)
        return default is not None and bool(default.knobs)

    def _made(self, template: str, chosen: Chosen) -> Point | None:
        func = self._task.workload["main"]
        scheduled = apply_template(self._templates[template], func, self._machine, chosen)
        if isinstance(scheduled, NotMine):
            return None
        free = chosen.free()
        known = self._points.get(key_of(template, free))
        if known is not None:
            return known
        recorded = RecordedSchedule(template_trace(func, template, chosen), template, free)
        made = candidate(self._task, recorded, scheduled, self._finish)
        return Point(made, template, free, {name: chosen.knobs[name] for name in free})
