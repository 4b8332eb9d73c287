"""Pipelines: which passes run at which level, and where users' passes go."""

import pytest

from tvm_ext.errors import ConfigError, PassError
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import REQUIRED, STAGES, Pipeline, build_pipeline, load_pipelines
from tvm_ext.passes.registry import register_pass
from tvm_ext.relay_passes.graph_pass import graph_pass

LEVELS = ("O0", "O1", "O2", "O3")


@pytest.fixture(autouse=True)
def _registry_as_before():
    before = {entry.name for entry in registry.all_entries()}
    yield
    for entry in registry.all_entries():
        if entry.name not in before:
            registry.remove(entry.name)


def same(mod):
    return mod


def names(pipeline: Pipeline, stage: str = "graph") -> list[str]:
    return [step.entry.name for step in getattr(pipeline, stage)]


@pytest.mark.parametrize("given", [2, "2", "O2", "o2"])
def test_levels_have_several_spellings(given):
    assert build_pipeline(given).opt_level == "O2"


@pytest.mark.parametrize("given", [4, -1, "O9", "", "fast", None, 1.5])
def test_an_unknown_level_is_named(given):
    with pytest.raises(ConfigError, match="optimisation level"):
        build_pipeline(given)


def test_the_default_is_the_highest():
    assert build_pipeline().opt_level == max(load_pipelines())


@pytest.mark.parametrize("level", LEVELS)
def test_without_user_passes_a_pipeline_is_what_its_file_says(level):
    pipeline, config = build_pipeline(level), load_pipelines()[level]
    for stage in STAGES:
        assert names(pipeline, stage) == getattr(config, stage)
        assert not any(step.skipped for step in getattr(pipeline, stage))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("place", ["after", "before"])
@pytest.mark.parametrize("neighbour", ["ConvBnReluFold", "GemmFusion", "LayoutPlanning"])
def test_a_pass_stands_next_to_its_neighbour_or_at_the_end(level, place, neighbour):
    register_pass(same, **{place: neighbour})
    found = names(build_pipeline(level))
    position = found.index("same")
    assert found.count("same") == 1
    if neighbour in load_pipelines()[level].graph:
        assert found[position - 1 if place == "after" else position + 1] == neighbour
    else:
        assert found[position:] == ["same", "PropagateSpans"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_pass_without_neighbour_ends_its_stage(level):
    register_pass(same)
    register_pass(same, name="later")
    assert names(build_pipeline(level))[-3:] == ["same", "later", "PropagateSpans"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_neighbour_of_the_lowered_part_takes_the_pass_there(level):
    register_pass(same, after="LegalizeOps")
    register_pass(same, name="ahead", before="LegalizeOps")
    pipeline = build_pipeline(level)
    lower = names(pipeline, "lower")
    position = lower.index("LegalizeOps")
    assert lower[position - 1 : position + 2] == ["ahead", "LegalizeOps", "same"]
    assert "same" not in names(pipeline)


def test_behind_a_pass_that_runs_often_means_behind_the_last():
    register_pass(same, after="FoldConstantCalls")
    register_pass(same, name="ahead", before="FoldConstantCalls")
    found = names(build_pipeline("O3"))
    assert "FoldConstantCalls" not in found[found.index("same") :]
    assert "FoldConstantCalls" not in found[: found.index("ahead")]


def test_users_passes_can_be_neighbours_of_each_other():
    register_pass(same, name="a", before="GemmFusion")
    register_pass(same, name="b", before="a")
    register_pass(same, name="c", after="a")
    found = names(build_pipeline("O3"))
    position = found.index("b")
    assert found[position : position + 4] == ["b", "a", "c", "GemmFusion"]


@pytest.mark.parametrize("stage", ["schedule", "tile", "memory", "target"])
def test_other_stages_hold_users_passes_in_their_order(stage):
    register_pass(same, name="a", level=stage)
    register_pass(same, name="b", level=stage)
    register_pass(same, name="c", level=stage, before="b")
    register_pass(same, name="d", level=stage, after="a")
    pipeline = build_pipeline("O0")
    found = names(pipeline, stage)
    position = found.index("a")
    assert found[position : position + 4] == ["a", "d", "c", "b"]
    # Ours that close the stage's work come behind them.
    behind = {"schedule": 0, "tile": 0, "memory": 7, "target": 0}[stage]
    assert position == behind
    assert not set("abcd") & set(names(pipeline))


def test_users_tile_passes_stand_next_to_ours():
    register_pass(same, name="behind", level="tile")
    register_pass(same, name="ahead", level="tile", before="VectorMath")
    assert names(build_pipeline("O3"), "tile") == [
        *("CoalesceAccesses", "ahead", "VectorMath", "ThreadsForLargeRuns", "behind"),
        "PropagateNan",
    ]


def test_disabled_passes_stay_and_say_so():
    register_pass(same)
    pipeline = build_pipeline("O3", disabled_passes=["FoldConstantCalls", "same"])
    skipped = {step.entry.name: step.skipped for step in pipeline.graph if step.skipped}
    assert skipped == {"FoldConstantCalls": "disabled", "same": "disabled"}
    assert sum(bool(s.skipped) for s in pipeline.graph) == (
        load_pipelines()["O3"].graph.count("FoldConstantCalls") + 1
    )


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_required_passes_cannot_be_disabled(name):
    with pytest.raises(PassError, match=f"'{name}' cannot be disabled"):
        build_pipeline(disabled_passes=[name])


def test_unknown_names_are_named():
    with pytest.raises(PassError, match="nearest known: 'GemmFusion'"):
        build_pipeline(disabled_passes=["GemFusion"])
    with pytest.raises(PassError, match="nearest known: 'GemmFusion'"):
        build_pipeline(pass_config={"GemFusion": {}})


@graph_pass
class Counting:
    """A pass with an option."""

    limit: int = 1

    def transform_module(self, mod, ctx):
        return mod


def test_options_reach_their_pass_and_wrong_ones_are_named():
    register_pass(Counting, name="Counting")
    pipeline = build_pipeline("O3", pass_config={"Counting": {"limit": 3}})
    (step,) = [step for step in pipeline.graph if step.entry.name == "Counting"]
    assert step.options == {"limit": 3}
    with pytest.raises(ConfigError, match="nearest known: 'limit'"):
        build_pipeline(pass_config={"Counting": {"limits": 3}})
    with pytest.raises(ConfigError, match="expected int"):
        build_pipeline(pass_config={"Counting": {"limit": "3"}})
    with pytest.raises(PassError, match="takes no options"):
        build_pipeline(pass_config={"FoldConstant": {"deep": True}})


def test_options_are_checked_even_where_the_pass_does_not_run():
    with pytest.raises(ConfigError, match="no option"):
        build_pipeline("O0", pass_config={"LayoutPlanning": {"nothing": 3}})
