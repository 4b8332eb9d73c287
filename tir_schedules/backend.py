"""What a backend is for this layer: its templates in order, the fallback, and finishing passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.configs.errors import TargetError, nearest_hint
from tvm_ext.hardware.backend import backend_of, get_backend
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.analysis.memory_access import MemoryAccess
from tvm_ext.tir_schedules.template import Template


@dataclass(eq=False)
class Scheduling:
    """How a backend schedules kernels.

    Attributes
    ----------
    templates : sequence of Template
        In the order in which they are asked; ``register_template`` adds others.
    rules : sequence of Template
        TVM's own rules, asked behind them.
    fallback : Template, optional
        Asked when none of those takes a kernel.
    loop_templates : sequence of Template
        Asked for kernels whose loops are written by hand, without blocks, where the user states a
        decision of the template.
    libraries : sequence of Template
        Used only where a record says so.
    finishing : sequence of callables
        What a template's schedule goes through before it is built, in order.
    several_results : callable, optional
        Schedules several results of equal loops in one loop nest, or raises NotApplicable; None
        where each result gets loops of its own.
    is_bound : callable, optional
        Whether a kernel's loops are bound to threads already, of a machine that runs no others;
        None where any loops run.
    memory_accesses : callable, optional
        How a kernel that ``lowered`` returned walks through the memory of a machine; None where
        nobody knows.
    """

    templates: Sequence[Template]
    rules: Sequence[Template] = ()
    fallback: Template | None = None
    loop_templates: Sequence[Template] = ()
    libraries: Sequence[Template] = ()
    finishing: Sequence[Callable[[tirx.PrimFunc, Any], tirx.PrimFunc]] = ()
    several_results: Callable[[tirx.PrimFunc, Any], Any] | None = None
    is_bound: Callable[[tirx.PrimFunc], bool] | None = None
    memory_accesses: Callable[[tirx.PrimFunc, Any], list[MemoryAccess]] | None = None

    @property
    def fallbacks(self) -> tuple[Template, ...]:
        """The fallback, if there is one."""
        return () if self.fallback is None else (self.fallback,)

    @property
    def recordable(self) -> tuple[Template, ...]:
        """All that a record may name."""
        return (
            *self.templates,
            *self.rules,
            *self.libraries,
            *self.loop_templates,
            *self.fallbacks,
        )


def scheduling_of(machine: MachineDescription) -> Scheduling:
    """How kernels are scheduled for a machine."""
    return backend_of(machine).part(Scheduling)


def register_template(
    backend: str, template: Any = None, *, before: str = "", after: str = ""
) -> Any:
    """Adds a template to a backend.

    Templates are asked in order, and the first that fits schedules a kernel. Without ``before`` and
    ``after`` the new template is asked first.

    Parameters
    ----------
    backend : str
        Name of the backend, such as "cpu".
    template : Template, or class that makes one without arguments
        Leave it out to use ``register_template`` as a decorator of such a class.
    before, after : str
        Name of a template of the backend. The new template is asked right before or after it.

    Returns
    -------
    The object that was given, so that it can still be used by its name.

    Raises
    ------
    TargetError
        There is no such backend, no template named by ``before`` or ``after``, or there is a
        template of this name already.
    """
    if template is None:
        return lambda given: register_template(backend, given, before=before, after=after)
    made: Template = template() if isinstance(template, type) else template
    owner = get_backend(backend)
    scheduling = owner.part(Scheduling)
    if made.name in [one.name for one in scheduling.recordable]:
        raise TargetError(
            f"backend '{backend}' has a template '{made.name}' already; expected another name: "
            "records find a template by its name"
        )
    if not issubclass(owner.machine_type, made.machine_type):
        raise TargetError(
            f"template '{made.name}' schedules for a {made.machine_type.__name__}, which the "
            f"machines of backend '{backend}' are not; expected {owner.machine_type.__name__}"
        )
    place = _place(backend, [one.name for one in scheduling.templates], made.name, before, after)
    scheduling.templates = (*scheduling.templates[:place], made, *scheduling.templates[place:])
    return template


def _place(backend: str, names: list[str], name: str, before: str, after: str) -> int:
    if before and after:
        raise TargetError(
            f"template '{name}' was given before='{before}' and after='{after}'; expected one: "
            "leave the other out"
        )
    neighbour = before or after
    if not neighbour:
        return 0
    if neighbour not in names:
        raise TargetError(
            f"template '{name}' wants to be next to '{neighbour}', which backend '{backend}' does "
            f"not have; {nearest_hint(neighbour, names)}"
        )
    return names.index(neighbour) + bool(after)


def remove_template(backend: str, name: str) -> None:
    """Takes a template out of a backend. Raises TargetError when it has none of that name."""
    scheduling = get_backend(backend).part(Scheduling)
    kept = [one for one in scheduling.templates if one.name != name]
    if len(kept) == len(scheduling.templates):
        hint = nearest_hint(name, [one.name for one in kept])
        raise TargetError(f"backend '{backend}' has no template '{name}'; {hint}")
    scheduling.templates = tuple(kept)
