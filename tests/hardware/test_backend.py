"""The registry of backends, and what can be added to one."""

from typing import Literal

import pytest
import tvm
from pydantic import ValidationError

import tvm_ext
from tvm_ext.configs.errors import NotApplicable, TargetError, TuningError
from tvm_ext.configs.loader import config_folder
from tvm_ext.hardware.backend import (
    Backend,
    all_backends,
    backend_of,
    get_backend,
    register_backend,
    remove_backend,
)
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.targets import load_description, preset, preset_names, resolve_target
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.backend import (
    Scheduling,
    register_template,
    remove_template,
    scheduling_of,
)
from tvm_ext.tir_schedules.cpu.blockwise import Blockwise
from tvm_ext.tuning.backend import Tuning, register_cost_model, remove_cost_model
from tvm_ext.tuning.cost_models.choose import choose_model


class OtherCpu(CpuDescription):
    kind: Literal["other-cpu"]  # type: ignore[assignment]


class Never:
    """Takes no kernel."""

    name = "never"
    machine_type = CpuDescription

    def apply(self, func, machine, decisions=None):
        raise NotApplicable("it takes none")


@pytest.fixture
def other():
    """A backend with nothing but a name and a type."""
    backend = register_backend(Backend("other", OtherCpu, ()))
    yield backend
    remove_backend("other")


def names() -> list[str]:
    return [template.name for template in get_backend("cpu").part(Scheduling).templates]


def test_every_preset_has_a_backend_of_its_word() -> None:
    assert {backend_of(preset(name)).name for name in preset_names()} == {"cpu", "cuda", "wafer"}
    assert backend_of(host_description()) is get_backend("cpu")


def test_templates_are_for_the_machines_of_their_backend() -> None:
    for backend in all_backends():
        found = backend.part(Scheduling).recordable
        assert all(issubclass(backend.machine_type, one.machine_type) for one in found)
        assert len({one.name for one in found}) == len(found)


@pytest.mark.parametrize("name", ["nvidia-a100", "wse2"])
def test_a_template_is_asked_for_machines_of_its_type_only(name) -> None:
    found = apply_template(Blockwise(), None, preset(name))
    assert found == NotApplicable(f"it does not schedule for a target such as '{name}'")


def test_machines_go_by_the_nearest_type(other) -> None:
    described = host_description().model_dump() | {"kind": "other-cpu"}
    machine = OtherCpu(**described)
    assert backend_of(machine) is other
    with pytest.raises(TargetError, match="backend 'other' has no part Scheduling"):
        scheduling_of(machine)

    class Derived(OtherCpu):
        pass

    assert backend_of(Derived(**described)) is other
    with pytest.raises(ValidationError):
        OtherCpu(**(described | {"kind": "cpu"}))


def test_files_describe_machines_of_a_registered_backend(other, tmp_path) -> None:
    text = (config_folder("targets") / "avx2.toml").read_text(encoding="utf-8")
    file = tmp_path / "mine.toml"
    file.write_text(text.replace('kind = "cpu"', 'kind = "other-cpu"'))
    assert isinstance(load_description(file), OtherCpu)


def test_a_backend_says_which_tvm_targets_are_its_machines() -> None:
    machine = OtherCpu(**(host_description().model_dump() | {"kind": "other-cpu"}))
    kinds = {
        "llvm": lambda target: machine if "mine" in target.keys else None,
        "opencl": lambda target: machine,
    }
    register_backend(Backend("other", OtherCpu, (), tvm_targets=kinds))
    try:
        assert resolve_target(tvm.target.Target("opencl")) is machine
        assert resolve_target(tvm.target.Target({"kind": "llvm", "keys": ["mine"]})) is machine
        assert backend_of(resolve_target(tvm.target.Target("llvm"))).name == "cpu"
        with pytest.raises(TargetError, match="expected 'llvm' or 'cuda' or 'opencl', or a target"):
            resolve_target(tvm.target.Target("c"))
    finally:
        remove_backend("other")


def test_a_name_or_type_that_is_taken_is_refused() -> None:
    for backend in (Backend("cpu", OtherCpu, ()), Backend("mine", CudaDescription, ())):
        with pytest.raises(TargetError, match=r"has the name or the description type of"):
            register_backend(backend)


@pytest.mark.parametrize(
    ("where", "place"),
    [({}, 0), ({"before": "elementwise"}, 1), ({"after": "elementwise"}, 2)],
)
def test_a_template_is_asked_where_it_was_put(where, place) -> None:
    before = names()
    assert before[:2] == ["transpose", "elementwise"]
    try:
        assert register_template("cpu", **where)(Never) is Never
        assert names() == [*before[:place], "never", *before[place:]]
    finally:
        remove_template("cpu", "never")
    assert names() == before


@pytest.mark.parametrize(
    ("backend", "where", "message"),
    [
        ("cup", {}, "no backend 'cup'; nearest known: 'cpu'"),
        ("cuda", {}, "schedules for a CpuDescription"),
        ("cpu", {"before": "elementwide"}, "nearest known: 'elementwise'"),
        ("cpu", {"before": "scan", "after": "scan"}, "expected one: leave the other out"),
    ],
)
def test_templates_that_cannot_be_added(backend, where, message) -> None:
    with pytest.raises(TargetError, match=message):
        register_template(backend, Never, **where)


def test_a_template_of_a_taken_name_is_refused() -> None:
    with pytest.raises(TargetError, match="has a template 'blockwise' already"):
        register_template("cpu", Blockwise)
    with pytest.raises(TargetError, match="has no template 'never'"):
        remove_template("cpu", "never")


def test_cost_models_are_added_by_name(tmp_path) -> None:
    notes: list[str] = []
    register_cost_model("cpu", "mine", "tvm_ext.tuning.cpu.cost_model:CpuCostModel")
    try:
        assert choose_model("mine", host_description(), tmp_path, notes.append).name == "mine"
        on_gpu = choose_model("mine", preset("nvidia-a100"), tmp_path, notes.append)
        assert on_gpu.name == "analytic"
        assert ["not for targets such as" in note for note in notes] == [True]
        with pytest.raises(TuningError, match="has a cost model 'mine' already"):
            register_cost_model("cpu", "mine", "nowhere:None")
    finally:
        remove_cost_model("cpu", "mine")
    assert "mine" not in get_backend("cpu").part(Tuning).cost_models


def test_our_cost_models_can_be_made() -> None:
    for name in ("avx2", "nvidia-a100", "wse2"):
        for entry in backend_of(preset(name)).part(Tuning).cost_models.values():
            assert entry.made(preset(name)) is not None


def test_registering_is_public() -> None:
    assert tvm_ext.register_backend is register_backend
    assert tvm_ext.register_template is register_template
    assert tvm_ext.register_cost_model is register_cost_model
