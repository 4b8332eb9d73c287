"""What a backend is for this layer: its cost models, and how candidates are measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from tvm_ext.configs.errors import TuningError
from tvm_ext.hardware.backend import backend_of, get_backend
from tvm_ext.hardware.machine import MachineDescription

if TYPE_CHECKING:
    from tvm_ext.tuning.runner import RunDeviceAddress


Maker = str | Callable[..., Any]
"""Makes something; "module:name" is imported only when it is needed."""


def _maker(make: Maker) -> Callable[..., Any]:
    found: Callable[..., Any] = resolve_name(make) if isinstance(make, str) else make
    return found


@dataclass(frozen=True)
class CostModelEntry:
    """A cost model that ranks candidates, by how it is made.

    Attributes
    ----------
    make : Maker
        Gives a ``PyCostModel`` of MetaSchedule for a machine. Where it is a name, a package that is
        missing is one model's failure.
    file : str
        Name of the file in which it keeps what it learns, with "{}" for the target; empty if it
        learns nothing.
    """

    make: Maker
    file: str = ""

    def made(self, machine: MachineDescription) -> Any:
        """The model for a machine."""
        return _maker(self.make)(machine)


def _random(_machine: MachineDescription) -> Any:
    from tvm.s_tir import meta_schedule

    return meta_schedule.cost_model.RandomModel(seed=0)


RANDOM = CostModelEntry(_random)
"""Ranks by chance, for any machine."""


def _no_facts(
    _machine: MachineDescription, _servers: "Sequence[RunDeviceAddress]"
) -> dict[str, str]:
    return {}


@dataclass(eq=False)
class Tuning:
    """How a backend's kernels are tuned.

    Attributes
    ----------
    cost_models : dict[str, CostModelEntry]
        By name; ``register_cost_model`` adds others. Where one fails, "analytic" and then "random"
        take its place.
    usual_model : str
        The one that ranks by default; empty for the effort's own.
    check_machine : callable
        Raises TuningError where candidates cannot be measured, on this machine or on the servers
        given; returns what the log says of the device.
    device : str
        TVM's name of the device that runs the code.
    cache_bytes : callable
        The size of the cache that is emptied before each call that is timed; 0 for none.
    build_check : callable
        What a candidate is held against when it is built, from the machine and whether it may
        spill registers; None for nothing.
    model_measurer : Maker, optional
        A ``Measurer`` that stands in for a machine that nobody has: from the machine, the limits,
        the seed and a scratch folder. Its times are modelled.
    pruner : Maker, optional
        Dismisses candidates before they are built: from the machine, the folder of the records and
        what takes a line for the user.
    """

    cost_models: dict[str, CostModelEntry]
    usual_model: str = ""
    check_machine: Callable[[Any, "Sequence[RunDeviceAddress]"], dict[str, str]] = _no_facts
    device: str = "cpu"
    cache_bytes: Callable[[Any], int] = lambda _machine: 0
    build_check: Callable[[Any, bool], Any] = lambda _machine, _may_spill: None
    model_measurer: Maker | None = None
    pruner: Maker | None = None

    @property
    def is_modelled(self) -> bool:
        """Whether times are a model's, and none is measured."""
        return self.model_measurer is not None

    def new_model_measurer(self, *arguments: Any) -> Any:
        """See ``model_measurer``, which there has to be."""
        return _maker(self.model_measurer or "")(*arguments)

    def new_pruner(self, *arguments: Any) -> Any:
        """See ``pruner``; None where nothing is dismissed."""
        return None if self.pruner is None else _maker(self.pruner)(*arguments)


def tuning_of(machine: MachineDescription) -> Tuning:
    """How kernels are tuned for a machine."""
    return backend_of(machine).part(Tuning)


def register_cost_model(backend: str, name: str, make: Maker, *, file: str = "") -> None:
    """Adds a cost model to a backend. ``tune(..., cost_model_name=name)`` ranks candidates by it.

    Parameters
    ----------
    backend : str
        Name of the backend, such as "cpu".
    name : str
        Name of the cost model.
    make : Maker
        A class or function that takes the machine's description and returns a ``PyCostModel`` of
        MetaSchedule, or its name as "module:name".
    file : str
        Name of the file in which the model keeps what it learns, with "{}" in the place of the
        target. Leave it empty if the model learns nothing.

    Raises
    ------
    TargetError
        There is no such backend.
    TuningError
        The backend already has a cost model of this name.
    """
    models = get_backend(backend).part(Tuning).cost_models
    if name in models:
        raise TuningError(
            f"backend '{backend}' has a cost model '{name}' already; expected another name"
        )
    models[name] = CostModelEntry(make, file)


def remove_cost_model(backend: str, name: str) -> None:
    """Takes a cost model out of a backend. Raises TuningError when it has none of that name."""
    models = get_backend(backend).part(Tuning).cost_models
    if name not in models:
        raise TuningError(f"backend '{backend}' has no cost model '{name}'")
    del models[name]
