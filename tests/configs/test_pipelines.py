"""The pipeline files: they are read, name passes that exist, and grow from level to level."""

import itertools

import pytest

from tvm_ext.configs.errors import ConfigError
from tvm_ext.configs.loader import config_folder, load_toml
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import (
    REQUIRED,
    STAGES,
    PassPipeline,
    PipelineConfig,
    build_pipeline,
    load_pipelines,
)

PIPELINES = load_pipelines()


def test_there_are_four_levels_in_order():
    assert list(PIPELINES) == ["O0", "O1", "O2", "O3"]


@pytest.mark.parametrize("level", PIPELINES)
def test_every_name_is_a_registered_pass_of_its_level_that_pipelines_may_list(level):
    config = PIPELINES[level]
    for stage, pass_level in STAGES.items():
        entries = [registry.get(name) for name in getattr(config, stage)]
        assert all((entry.level, entry.in_pipelines) == (pass_level, True) for entry in entries)


@pytest.mark.parametrize("level", PIPELINES)
def test_what_cannot_be_left_out_is_there_once_and_in_order(level):
    stages = {stage: getattr(PIPELINES[level], stage) for stage in STAGES}
    names = [name for listed in stages.values() for name in listed]
    assert all(names.count(name) == 1 for name in REQUIRED)
    # The rules that a user's pipeline is held to.
    build_pipeline(own=PassPipeline(**stages))


@pytest.mark.parametrize("level", PIPELINES)
def test_origins_are_filled_in_after_graph_passes_and_after_lowering(level):
    config = PIPELINES[level]
    assert config.graph[-1] == "PropagateSpans"
    assert config.lower.index("PropagateSpans") > config.lower.index("LegalizeOps")
    if "FuseOperators" in config.lower:
        assert config.lower.index("PropagateSpans") < config.lower.index("FuseOperators")


def test_each_level_does_what_the_one_below_does():
    levels = list(PIPELINES.values())
    for low, high in itertools.pairwise(levels):
        for stage in STAGES:
            assert set(getattr(low, stage)) <= set(getattr(high, stage))
        assert (low.graph, low.lower) != (high.graph, high.lower)


def test_batch_norm_is_folded_before_it_is_taken_apart():
    for level in ("O1", "O2", "O3"):
        graph = PIPELINES[level].graph
        assert graph.index("ConvBnReluFold") < graph.index("DecomposeOpsForInference")


def test_integers_that_stay_integers_get_the_instruction_for_them():
    """``AccumulateInFloat32`` leaves products to the instruction that ``CompressWeights`` wants."""
    for level in PIPELINES.values():
        assert ("AccumulateInFloat32" in level.graph) == ("CompressWeights" in level.graph)


def test_summaries_are_one_line():
    summaries = [config.summary for config in PIPELINES.values()]
    assert all(summary and "\n" not in summary for summary in summaries)
    assert len(set(summaries)) == len(summaries)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ('graph = "FoldConstant"', "'graph'"),
        ("graph = [3]", "[graph]"),
        ("grpah = []", "unknown key 'grpah'"),
        ("", "missing key 'graph'"),
        ("graph = [", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_named_in_one_line(tmp_path, change, words):
    path = tmp_path / "O7.toml"
    path.write_text(f'summary = "x"\nlower = []\n{change}\n', encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load_toml(path, PipelineConfig)
    assert "O7.toml" in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_folder_holds_nothing_else():
    found = sorted(entry.name for entry in config_folder("pipelines").iterdir())
    assert found == [f"{level}.toml" for level in PIPELINES]
