"""The choice of a schedule for each kernel of a module."""

import pytest
import tvm
from kernel_cases import CASES
from lowering import f32, kernel_of, kernels_of, loops_of
from machines import GPU, MACHINE
from tvm import relax, s_tir, tirx
from tvm.relax.op import nn
from tvm.s_tir import dlight
from tvm.script import tirx as T

from tvm_ext.configs.errors import ScheduleRefusedError
from tvm_ext.tir_schedules.backend import scheduling_of
from tvm_ext.tir_schedules.schedule_kernels import (
    SCHEDULED_ATTRIBUTE,
    ScheduleChoice,
    schedule_kernel,
    schedule_kernels,
    without_type_checks,
)

op = relax.op


def test_every_kernel_has_a_choice() -> None:
    any_size = tuple(tirx.Var(name, "int64") for name in "nmk")
    functions = {
        "product": kernel_of(op.matmul, f32(5, 7), f32(7, 24)),
        "sum": kernel_of(op.add, f32(5, 24), f32(5, 24)),
        "norm": kernel_of(lambda x: nn.softmax(x, 1), f32(5, 24)),
        "waits": kernel_of(lambda x: nn.softmax(x, 1), (any_size, "float32")),
    }
    mod = tvm.IRModule(functions)
    before = mod.script()
    scheduled, choices = schedule_kernels(mod, MACHINE)
    assert mod.script() == before
    assert {name: choice.schedule for name, choice in choices.items()} == {
        "product": "register tile",
        "sum": "elementwise",
        "norm": "softmax and norm",
        "waits": "blockwise",
    }
    sources = [choices[name].source for name in functions]
    assert sources == ["template", "template", "template", "generic"]
    assert not any("elementwise" in refusal for refusal in choices["sum"].refusals)
    assert "elementwise: the kernel reduces or scans" in choices["product"].refusals
    assert len(choices["waits"].refusals) == len(scheduling_of(MACHINE).templates)
    assert all(scheduled[name].attrs[SCHEDULED_ATTRIBUTE] for name in functions)


def test_relax_functions_are_kept() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([3], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.exp(x)))
    scheduled, choices = schedule_kernels(builder.get(), MACHINE)
    assert choices == {}
    assert isinstance(scheduled["main"], relax.Function)


def test_scheduled_kernel_stays() -> None:
    func = kernel_of(op.exp, f32(64)).with_attr(SCHEDULED_ATTRIBUTE, True)
    found, choice = schedule_kernel(func, MACHINE)
    assert found.same_as(func)
    assert choice == ScheduleChoice("user schedule", "user", "it was scheduled before")
    once, _ = schedule_kernel(kernel_of(op.exp, f32(64)), MACHINE)
    twice, choice = schedule_kernel(once, MACHINE)
    assert twice.same_as(once)
    assert choice.source == "user"


@T.prim_func(s_tir=True)
def scan(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
    b[0] = a[0]
    for i in range(15):
        b[i + 1] = b[i] + a[i + 1]


def test_kernel_without_blocks() -> None:
    found, choice = schedule_kernel(scan, MACHINE)
    assert found.same_as(scan)
    assert (choice.schedule, choice.source) == ("as written", "as written")


def test_kernel_without_blocks_is_bound_on_a_gpu() -> None:
    found, choice = schedule_kernel(scan, GPU)
    assert (choice.schedule, choice.source) == ("generic", "generic")
    assert "thread" in [loop.kind for loop in loops_of(found)]


def test_rule_that_fails_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, *_: object) -> None:
        raise AttributeError("'Add' object has no attribute 'value'")

    for rule in ("Matmul", "Reduction", "GeneralReduction", "Fallback"):
        monkeypatch.setattr(getattr(dlight.gpu, rule), "apply", fail)
    monkeypatch.setattr(scheduling_of(GPU), "templates", ())
    found, choice = schedule_kernel(kernel_of(op.exp, f32(64, 64)), GPU)
    assert choice.schedule == "generic"
    assert any(r.endswith("Matmul: the rule fails on it") for r in choice.refusals)
    assert "thread" in [loop.kind for loop in loops_of(found)]


@T.prim_func(s_tir=True)
def packed(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32")):
    T.evaluate(T.call_packed("tvm.contrib.sort.sort", a.data, b.data))


def test_kernel_that_calls_the_host_is_refused_on_a_gpu() -> None:
    with pytest.raises(ScheduleRefusedError, match=r"calls tvm\.contrib\.sort\.sort"):
        schedule_kernel(packed, GPU)


def test_symbol_is_kept() -> None:
    func = kernel_of(op.exp, f32(64)).with_attr("global_symbol", "kernel")
    found, _ = schedule_kernel(func, MACHINE)
    assert found.attrs["global_symbol"] == "kernel"


def test_refused_primitive_asks_the_next_template(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(func: tirx.PrimFunc, machine: object) -> s_tir.Schedule:
        sch = s_tir.Schedule(func)
        sch.get_sblock("no such block")
        return sch

    first, second, *_ = scheduling_of(MACHINE).templates
    own = type(first.template)
    monkeypatch.setattr(own, "apply", lambda self, f, m, decisions: refuse(f, m))
    _, choice = schedule_kernel(kernel_of(op.exp, f32(64)), MACHINE)
    assert choice.schedule == second.name
    assert choice.refusals[0].endswith("does not apply to these loops")
    assert "\n" not in choice.refusals[0]


@pytest.mark.parametrize("name", CASES)
def test_first_template(name: str) -> None:
    case = CASES[name]
    kernels = kernels_of(case.expression, *case.inputs)
    found = [schedule_kernel(func, MACHINE)[1].schedule for func in kernels.values()]
    assert case.template in found


@pytest.mark.parametrize(
    ("func", "schedule"),
    [
        (lambda: kernel_of(op.matmul, f32(64, 64), f32(64, 64)), "contraction"),
        (lambda: kernel_of(lambda x: nn.max_pool2d(x, (3, 3)), f32(1, 4, 9, 9)), "pooling"),
        (lambda: kernel_of(op.exp, f32(64, 64)), "elementwise"),
        (lambda: kernel_of(op.permute_dims, f32(64, 64)), "transpose"),
        (lambda: kernel_of(lambda x: nn.softmax(x, 1), f32(64, 64)), "row reduction"),
    ],
)
def test_gpu_rules(func: object, schedule: str) -> None:
    found, choice = schedule_kernel(func(), GPU)  # type: ignore[operator]
    source = "tvm rule" if schedule.startswith("dlight") else "template"
    assert (choice.schedule, choice.source) == (schedule, source)
    assert "thread" in [loop.kind for loop in loops_of(found)]
    assert "threadIdx.x" in found.script()


def test_steps_of_schedules_are_checked_again_behind_the_last_block_without():
    def checked() -> bool:
        return hasattr(s_tir.Schedule.split, "__wrapped__")

    before = checked()
    with without_type_checks():
        with without_type_checks():
            assert not checked()
        assert not checked()
    assert checked() == before
