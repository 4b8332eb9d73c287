"""The runner: what it records of each pass, what it dumps, and how it names a pass that fails."""

import pytest
import tvm
from tvm import relax

from tvm_ext.errors import ConfigError, PassError
from tvm_ext.passes.pipeline import PassStep
from tvm_ext.passes.registry import PassEntry, get
from tvm_ext.passes.runner import PassRunner
from tvm_ext.relay_passes.graph_pass import record_applied, record_refusal, recording

op = relax.op
TYPE = relax.TensorType([2, 3], "float32")


def module(*operators) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    value = relax.Var("x", TYPE)
    with builder.function("main", [value]):
        for operator in operators or (op.exp, op.tanh):
            value = builder.emit(operator(value))
        builder.emit_func_output(value)
    return builder.get()


def step(function, name="", skipped="", **info) -> PassStep:
    """A step whose pass is ``function(mod)``; ``info`` as in tvm.transform.module_pass."""
    name = name or function.__name__
    made = tvm.transform.module_pass(
        lambda mod, ctx: function(mod), **{"opt_level": 0, "name": name, **info}
    )
    return PassStep(PassEntry(name, "graph", lambda: made, "user", ""), {}, skipped)


def unchanged(mod):
    return mod


def rebuilt(mod):
    """Another object that is structurally the same."""
    return module()


def cut(mod):
    record_applied("cut", "tanh", "cut off")
    return module(op.exp)


def refusing(mod):
    record_refusal("refusing", "exp", "not today")
    return mod


def test_records_say_what_changed_and_what_was_decided():
    runner = PassRunner()
    new = runner.run([step(f) for f in (unchanged, rebuilt, refusing, cut)], module())
    assert [(r.name, r.changed, r.applied, r.refused) for r in runner.records] == [
        ("unchanged", False, 0, 0),
        ("rebuilt", False, 0, 0),
        ("refusing", False, 0, 1),
        ("cut", True, 1, 0),
    ]
    assert all(r.seconds >= 0 and r.level == "graph" and not r.skipped for r in runner.records)
    (decision,) = runner.records[-1].decisions
    assert (decision.pass_name, decision.applied, decision.where) == ("cut", True, "tanh")
    tvm.ir.assert_structural_equal(new, module(op.exp))


def test_decisions_go_to_the_pass_that_made_them_although_passes_nest():
    def nesting(mod):
        record_applied("nesting", "a", "first")
        tvm.transform.Sequential([step(cut).make(), step(refusing).make()])(mod)
        record_refusal("nesting", "b", "last")
        return relax.transform.CanonicalizeBindings()(mod)

    runner = PassRunner()
    runner.run([step(refusing), step(nesting), step(unchanged), step(cut)], module())
    decided = {r.name: [d.pass_name for d in r.decisions] for r in runner.records}
    # The refusal inside is the one that was noted before; each is noted once.
    assert decided == {
        "refusing": ["refusing"],
        "nesting": ["nesting", "cut", "nesting"],
        "unchanged": [],
        "cut": [],
    }


@pytest.mark.parametrize(
    "info",
    [{"opt_level": 9}, {"traceable": True}],
    ids=lambda info: next(iter(info)),
)
def test_a_pass_that_tvm_would_leave_out_runs_and_has_its_own_record(info):
    runner = PassRunner()
    runner.run([step(unchanged), step(cut, **info), step(refusing)], module())
    assert [(r.name, r.applied, r.refused) for r in runner.records] == [
        ("unchanged", 0, 0),
        ("cut", 1, 0),
        ("refusing", 0, 1),
    ]


def test_a_pass_whose_tvm_name_differs_is_called_as_it_was_registered():
    made = tvm.transform.module_pass(lambda mod, ctx: cut(mod), opt_level=0, name="other")
    runner = PassRunner()
    runner.run([PassStep(PassEntry("mine", "tile", lambda: made, "user", ""), {})], module())
    assert [(r.name, r.level, r.changed) for r in runner.records] == [("mine", "tile", True)]


def test_skipped_passes_do_not_run_and_say_why():
    runner = PassRunner()
    new = runner.run([step(cut, skipped="disabled"), step(unchanged)], module())
    assert [(r.name, r.skipped, r.changed) for r in runner.records] == [
        ("cut", "disabled", False),
        ("unchanged", "", False),
    ]
    tvm.ir.assert_structural_equal(new, module())


def test_no_steps_return_the_module_itself():
    mod = module()
    runner = PassRunner()
    assert runner.run([], mod).same_as(mod)
    assert runner.records == []


def test_records_of_several_stages_follow_each_other():
    runner = PassRunner()
    runner.run([step(unchanged)], module())
    runner.run([step(cut)], module())
    assert [r.name for r in runner.records] == ["unchanged", "cut"]


def test_decisions_of_a_stage_do_not_reach_an_outer_log():
    with recording() as outer:
        PassRunner().run([step(cut)], module())
    assert outer == []


def test_instruments_look_on():
    seen = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_before_pass(self, mod, info):
            seen.append(str(info.name))

    PassRunner().run([step(unchanged), step(cut)], module(), extra=[Watch()])
    assert [name for name in seen if name in ("unchanged", "cut")] == ["unchanged", "cut"]


def raises(mod):
    raise KeyError("boom")


def raises_at_length(mod):
    raise ValueError("first line\n\nsecond line\n  the reason \n")


def raises_silently(mod):
    raise ValueError


def nothing(mod):
    return None


def number(mod):
    return 3


def ill_formed(mod):
    func = mod["main"]
    stranger = relax.Var("stranger", TYPE)
    body = relax.SeqExpr([], stranger)
    return tvm.IRModule(
        {"main": relax.Function(func.params, body, TYPE).with_attr("global_symbol", "main")}
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (raises, "boom"),
        (raises_at_length, "the reason"),
        (raises_silently, "ValueError"),
        (nothing, "--debug"),
        (number, "--debug"),
        (ill_formed, "not well-formed"),
    ],
)
def test_a_pass_that_fails_is_named_in_one_line(function, reason):
    runner = PassRunner()
    with pytest.raises(PassError) as error:
        runner.run([step(unchanged), step(function), step(cut)], module())
    text = str(error.value)
    assert text.startswith(f"pass '{function.__name__}' failed: ")
    assert reason in text
    assert f"--disable-pass {function.__name__}" in text
    assert "\n" not in text
    assert len(text) < 600
    assert [r.name for r in runner.records] == ["unchanged"]


def test_a_pass_that_catches_the_failure_of_another_is_not_blamed():
    def careful(mod):
        try:
            return step(raises).make()(mod)
        except KeyError:
            return mod

    runner = PassRunner()
    runner.run([step(careful), step(cut)], module())
    assert [r.changed for r in runner.records] == [False, True]


def test_dumps_are_numbered_through_all_stages(tmp_path):
    runner = PassRunner(tmp_path / "new" / "dumps")
    runner.run([PassStep(get("CanonicalizeBindings"), {}), step(cut)], module())
    runner.run([step(unchanged)], module(op.exp))
    files = sorted(path.name for path in (tmp_path / "new" / "dumps").iterdir())
    assert [int(name[:3]) for name in files] == list(range(len(files)))
    wanted = ["CanonicalizeBindings", "cut", "unchanged"]
    kept = [name for name in files if name[4:-3] in wanted]
    assert [name[4:-3] for name in kept] == wanted
    text = (tmp_path / "new" / "dumps" / kept[1]).read_text(encoding="utf-8")
    assert "R.exp" in text
    assert "R.tanh" not in text


def test_an_earlier_dump_is_replaced_and_foreign_files_stay(tmp_path):
    dumps, foreign = tmp_path / "dumps", tmp_path / "foreign"
    PassRunner(dumps).run([step(unchanged), step(cut)], module())
    PassRunner(dumps).run([step(unchanged)], module())
    assert len(list(dumps.iterdir())) == 1
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine", encoding="utf-8")
    PassRunner(foreign).run([step(unchanged)], module())
    assert (foreign / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_file_in_the_place_of_the_dump_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="cannot be made") as error:
            PassRunner(folder)
        assert "\n" not in str(error.value)
