"""Users' passes in a whole compilation: they run at their stage, are respected and named."""

import numpy as np
import pytest
import tvm
from small_models import assert_mlp, mlp, model, node, rand, value
from tvm import relax
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import BuildError, ModelError, PassError
from tvm_ext.passes import registry


@pytest.fixture
def register():
    before = {entry.name for entry in registry.all_entries()}
    yield tvm_ext.register_pass
    for entry in registry.all_entries():
        if entry.name not in before:
            registry.remove(entry.name)


def test_hooks_of_every_stage_see_what_their_stage_is_about(register):
    seen = {}

    def watch(level: str, place: dict) -> None:
        def look(mod):
            kernels = [f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
            scheduled = [k for k in kernels if k.attrs and "tirx.is_scheduled" in k.attrs]
            operators = mod.script().count("R.matmul")
            allocated = "alloc_storage" in mod.script()
            seen[level] = (operators, len(kernels), len(scheduled), allocated)
            return mod

        register(look, level=level, name=f"look {level}", **place)

    for level, place in {
        "graph": {"before": "GemmFusion"},
        "schedule": {},
        "tile": {},
        "target": {},
    }.items():
        watch(level, place)
    made = tvm_ext.compile(mlp(4), HOST, opt_level="O3")
    assert seen["graph"] == (2, 0, 0, False)
    operators, kernels, scheduled, allocated = seen["schedule"]
    assert (operators, scheduled, allocated) == (0, 0, False)
    assert kernels >= 2
    assert seen["tile"] == (0, kernels, kernels, False)
    assert seen["target"][3]
    levels = {entry.name: entry.level for entry in made.report.passes if "look" in entry.name}
    assert levels == {f"look {level}": level for level in seen}
    assert_mlp(made, rand(4, 6))


def test_a_kernel_that_a_hook_scheduled_is_left_as_it_is(register):
    def schedule(mod):
        functions = {
            var: func.with_attr("tirx.is_scheduled", True)
            if isinstance(func, tvm.tirx.PrimFunc) and "matmul" in str(var.name_hint)
            else func
            for var, func in mod.functions.items()
        }
        return tvm.IRModule(functions, attrs=mod.attrs)

    register(schedule, level="schedule")
    made = tvm_ext.compile(mlp(4), opt_level="O0")
    sources = {kernel.name: kernel.source for kernel in made.report.kernels}
    assert all((source == "user") == ("matmul" in name) for name, source in sources.items())
    assert "user" in sources.values()
    assert_mlp(made, rand(4, 6))


@pytest.mark.extended
def test_a_hook_that_breaks_the_module_is_named(register):
    def breaks(mod):
        raise RuntimeError("the hook broke")

    for level in ("graph", "schedule", "tile", "target"):
        register(breaks, level=level, name=f"breaks at {level}")
        with pytest.raises(PassError, match=f"pass 'breaks at {level}' failed: the hook broke"):
            tvm_ext.compile(mlp())
        registry.remove(f"breaks at {level}")


def test_an_operator_that_was_not_lowered_is_named_with_its_node(register):
    """A pass that puts an operator back behind LegalizeOps is found before code is generated."""

    def put_back(mod):
        builder = tvm.relax.BlockBuilder()
        x = tvm.relax.Var("x", tvm.relax.TensorType([4, 6], "float32"))
        with builder.function("main", [x]):
            left, first = (builder.emit(tvm.relax.op.nn.softmax(x)) for _ in range(2))
            builder.emit_func_output(tvm.relax.Tuple([left, first]))
        return builder.get()

    register(put_back, after="LegalizeOps")
    with pytest.raises(ModelError, match="no kernel can be made") as e:
        tvm_ext.compile(mlp(4), opt_level="O0")
    assert "the nodes 'gv'" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.extended
def test_what_no_code_can_be_made_for_is_one_line(register):
    def not_buildable(mod):
        return mod.with_attr("external_mods", 3)

    register(not_buildable, level="target")
    with pytest.raises(BuildError, match="no code can be generated") as error:
        tvm_ext.compile(mlp(4))
    assert "\n" not in str(error.value)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("level", "before"), [("memory", ""), ("memory", "VMShapeLower"), ("target", "")]
)
def test_an_output_that_a_hook_makes_a_view_is_copied(register, level, before):
    def gives_the_input_back(mod):
        main = mod["main"]
        body = relax.SeqExpr(main.body.blocks, main.params[0])
        changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): changed})

    register(gives_the_input_back, level=level, before=before)
    proto = model([node("Exp", ["x"], ["y"])], [value("x", [64, 1024])], [value("y", None)])
    made = tvm_ext.compile(proto, HOST, opt_level="O0")
    room = np.zeros(64 * 1024 + 16, "float32")
    x = room[-room.ctypes.data % 64 // 4 :][: 64 * 1024].reshape(64, 1024)
    first = made.run({"x": x})["y"]
    first[...] = 7
    assert not x.any()
    assert not made.run({"x": x})["y"].any()


@pytest.mark.extended
def test_a_hook_that_only_looks_costs_no_copies(register):
    register(lambda mod: mod, level="target", name="looks")
    assert tvm_ext.compile(mlp(4), HOST, opt_level="O0").report.memory.copied_outputs == []
