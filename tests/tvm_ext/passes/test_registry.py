"""Registering passes: every form that is taken, every mistake that is named."""

import pytest
import tvm
from tvm import relax

import tvm_ext
from tvm_ext.errors import ConfigError, PassError
from tvm_ext.passes import registry
from tvm_ext.passes.registry import register_pass
from tvm_ext.relay_passes.graph_pass import graph_pass


@pytest.fixture(autouse=True)
def _registry_as_before():
    before = {entry.name for entry in registry.all_entries()}
    yield
    for entry in registry.all_entries():
        if entry.name not in before:
            registry.remove(entry.name)


def module() -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    return builder.get()


def marked(mod: tvm.IRModule, ctx: object = None) -> tvm.IRModule:
    """Marks the module.

    More words.
    """
    return mod.with_attr("marked", 1)


def runs(name: str, **options: object) -> bool:
    return registry.get(name).make(options)(module()).attrs["marked"] == 1


def test_decorator_gives_the_function_back():
    @register_pass
    def first(mod):
        return marked(mod)

    @register_pass(level="graph", after="GemmFusion", name="Second")
    def second(mod, ctx):
        return marked(mod)

    assert runs("first")
    assert runs("Second")
    assert first(module()).attrs["marked"] == 1
    assert registry.get("Second").after == "GemmFusion"


def test_public_name_is_the_same_function():
    assert tvm_ext.register_pass is register_pass


def both(mod, ctx):
    return marked(mod)


def alone(mod):
    return marked(mod)


def star(*arguments):
    return marked(arguments[0])


def optional(mod, strength=1):
    return marked(mod)


class Callable:
    def __call__(self, mod):
        return marked(mod)


@tvm.transform.module_pass(opt_level=0, name="OfClass")
class OfClass:
    """A class of passes."""

    def transform_module(self, mod, ctx):
        return marked(mod)


@pytest.mark.parametrize(
    "given",
    [
        both,
        alone,
        star,
        optional,
        Callable(),
        lambda mod: marked(mod),
        OfClass,
        OfClass(),
        tvm.transform.module_pass(both, opt_level=0, name="made"),
        tvm.transform.Sequential([OfClass()]),
    ],
    ids=lambda given: getattr(given, "__name__", type(given).__name__),
)
def test_every_form_of_a_pass_is_taken(given):
    register_pass(given, name="Given")
    assert runs("Given")


def test_names_come_from_what_was_given():
    register_pass(alone)
    register_pass(OfClass())
    assert registry.get("alone").source == "user"
    assert registry.get("OfClass").level == "graph"


def test_summary_is_the_first_line_of_the_documentation():
    register_pass(marked)
    entry = registry.get("marked")
    assert entry.summary == "Marks the module."
    assert "More words." in entry.doc
    assert registry.first_line(None) == registry.first_line(" \n ") == ""


def test_a_pass_with_options_is_made_with_them():
    @graph_pass
    class Marker:
        """Marks."""

        value: int = 1
        word: str = "a"

        def transform_module(self, mod, ctx):
            return mod.with_attr("marked", self.value)

    register_pass(Marker, name="Marker")
    assert registry.get("Marker").options() == {"value": 1, "word": "a"}
    made = registry.get("Marker").make({"value": 7})
    assert made(module()).attrs["marked"] == 7
    with pytest.raises(ConfigError, match=r"no option 'valu'; nearest known: 'value'"):
        registry.get("Marker").make({"valu": 7})
    with pytest.raises(ConfigError, match=r"'value' of Marker is '7'; expected int"):
        registry.get("Marker").make({"value": "7"})


def one_line(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "FoldConstant"}, "'FoldConstant' is registered already (tvm)"),
        ({"name": "GemmFusion"}, "registered already (built-in)"),
        ({"level": "grahp"}, "has level 'grahp'; nearest known: 'graph'"),
        ({"after": "GemFusion"}, "not registered; nearest known: 'GemmFusion'"),
        ({"before": "Nothing at all"}, "not registered; known: "),
        ({"level": "tile", "after": "GemmFusion"}, "'GemmFusion' of level graph"),
        ({"after": "GemmFusion", "before": "FuseTIR"}, "expected one: leave the other out"),
    ],
)
def test_wrong_registrations_are_named_and_leave_nothing(arguments, words):
    names = [entry.name for entry in registry.all_entries()]
    with pytest.raises(PassError) as error:
        register_pass(both, **{"name": "Mine", **arguments})
    assert words in one_line(error)
    assert [entry.name for entry in registry.all_entries()] == names


def test_what_has_no_name_needs_one():
    with pytest.raises(PassError, match="pass name="):
        register_pass(lambda mod: mod)


@pytest.mark.parametrize("given", [3, "GemmFusion", object()])
def test_what_is_no_pass_is_refused(given):
    with pytest.raises(PassError, match=r"expected a tvm\.transform\.Pass"):
        register_pass(given, name="Mine")


class NoPass:
    pass


class NeedsArgument:
    def __init__(self, size):
        self.size = size


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (NoPass, "made a NoPass, expected a tvm.transform.Pass"),
        (NeedsArgument, "cannot be made (it raised an error, which --debug shows)"),
    ],
)
def test_a_class_that_makes_no_pass_is_named_when_it_is_used(given, words):
    register_pass(given)
    with pytest.raises(PassError) as error:
        registry.get(given.__name__).make({})
    assert words in one_line(error)


def test_options_for_a_pass_without_any_are_refused():
    register_pass(both)
    with pytest.raises(PassError, match="'both' takes no options, and was given size, speed"):
        registry.get("both").make({"size": 1, "speed": 2})


def test_unknown_names_get_the_nearest():
    with pytest.raises(PassError, match="nearest known: 'LayoutPlanning'"):
        registry.get("LayoutPlaning")
    with pytest.raises(PassError, match="nearest known: 'LayoutPlanning'"):
        registry.remove("LayoutPlaning")


def test_a_removed_name_is_free_again():
    register_pass(both)
    registry.remove("both")
    register_pass(both)


def test_every_built_in_pass_says_what_it_does_leaves_alone_and_where_it_runs():
    built_in = [entry for entry in registry.all_entries() if entry.source == "built-in"]
    assert len(built_in) >= 6
    for entry in built_in:
        assert entry.summary.endswith("."), entry.name
        assert "Leaves alone:" in entry.doc, entry.name
        assert "Run after" in entry.doc or "Run before" in entry.doc, entry.name
