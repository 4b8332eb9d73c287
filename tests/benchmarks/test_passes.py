"""What each pass is worth: verdicts and tables from figures that nobody measured, and one run."""

import json
from pathlib import Path

import passes
import pytest
from ablation import (
    LEVEL,
    ModelEffects,
    PassEffect,
    ProgramFigures,
    Ratios,
    Variant,
    optional_passes,
    pipeline_up_to,
    verdicts,
)
from pass_page import Setup, from_dict, page, to_dict

from tvm_ext.errors import TvmExtError
from tvm_ext.passes.pipeline import REQUIRED, build_pipeline, load_pipelines

USUAL = ProgramFigures(calls=10, bytes=1 << 20, planned_bytes=1000, pass_seconds=1.0)
SETUP = Setup("a machine", 2, {"tvm-ext": "0.1.0"}, "2026-01-02", 9)


def timed(name: str, median: float, width: float = 0.0, planned: int | None = 1000) -> Variant:
    figures = ProgramFigures(20, 2 << 20, planned, 1.0)
    time = Ratios(median, median - width, median + width)
    return Variant(name, figures, time, 2.0, own_seconds=0.005)


def same(name: str) -> Variant:
    return Variant(name, USUAL, reason="the kernels are the same")


def unchanged(name: str) -> Variant:
    return Variant(name, reason="it changes nothing")


def model(name: str, *removals: Variant, noise: float = 0.02) -> ModelEffects:
    effects = [PassEffect("FuseTIR", 0.01, True, 39, 30, 1 << 20, 4096)]
    layouts = [timed("channels_first", 1.5), same("channels_last")]
    return ModelEffects(name, 100, USUAL, 3.0, noise, effects, list(removals), layouts)


def verdict(*models: ModelEffects) -> str:
    (found,) = verdicts(models)
    return found.sentence()


def test_a_pass_pays_where_its_removal_costs_more_than_noise():
    assert verdict(model("a", timed("P", 1.5))) == (
        "It pays on 1 model, by up to 1.50 times (a). It slows none."
    )
    assert verdict(model("a", timed("P", 1.1)), model("b", timed("P", 1.3))) == (
        "It pays on 2 models, by up to 1.30 times (b). It slows none."
    )


def test_a_pass_that_slows_a_model_is_told():
    assert verdict(model("a", timed("P", 1.5)), model("b", timed("P", 0.8))) == (
        "It pays on 1 model, by up to 1.50 times (a). It slows 1 model, by up to 1.25 times (b)."
    )
    (found,) = verdicts([model("a", timed("P", 1.5)), model("b", timed("P", 0.8))])
    assert not found.is_worth_it


@pytest.mark.parametrize(
    ("removal", "noise"),
    [(timed("P", 1.01), 0.02), (timed("P", 1.04), 0.05), (timed("P", 1.2, width=0.3), 0.02)],
)
def test_noise_is_no_gain(removal, noise):
    assert verdict(model("a", removal, noise=noise)) == (
        "It changes 1 model and gains nothing beyond noise. It slows none."
    )


def test_memory_counts_without_noise():
    assert verdict(model("a", timed("P", 1.0, planned=1500))) == (
        "It saves memory on 1 model, by up to 1.50 times (a). It slows none."
    )
    assert "It needs more memory on 1 model, by up to 2.00 times (a)." in (
        verdict(model("a", timed("P", 1.0, planned=500)))
    )
    assert "memory" not in verdict(model("a", timed("P", 1.0, planned=None)))


def test_what_is_the_same_or_unchanged_counts_as_one():
    (found,) = verdicts([model("a", timed("P", 4.0)), model("b", same("P"))])
    assert found.time == pytest.approx(2.0)
    assert found.acts == ["a", "b"]
    (found,) = verdicts([model("a", unchanged("P"))])
    assert (found.time, found.acts) == (pytest.approx(1.0), [])
    assert found.sentence() == "It changes none of these models."


def test_the_page_has_each_figure_and_the_command():
    models = [
        model("first", timed("P", 1.5), unchanged("Q")),
        model("second", same("P"), unchanged("Q")),
    ]
    text = "\n".join(page(SETUP, models, ["first.onnx", "--page", "x.md"]))
    assert "python benchmarks/passes.py first.onnx --page x.md" in text
    assert (
        "| `P` | first | 1.50 | 1.50 to 1.50 | 1.00 | 20 / 10 | 2.00 MiB / 1.00 MiB | 1000 / 1000 |"
        in text
    )
    assert "| `P` | second | same |  | 1.00 | 10 / 10 | 1.00 MiB / 1.00 MiB | 1000 / 1000 |" in text
    assert "| `P` | **geometric mean of 2** | **1.22** |  | **1.00** |  |  |  |" in text
    assert "None of these models is changed by `Q`." in text
    assert "| first | 3 | 1.50 | same | 1.00 | 2 % |" in text
    assert "| `FuseTIR` | 39 | 30 | 1.00 MiB | 4.00 KiB | 10.0 |" in text
    assert "100 ONNX nodes, and a run calls 10 kernels, one for 10.0 nodes." in text


def test_a_refused_program_is_told_with_its_reason():
    refused = Variant("P", reason="error of the compiler")
    text = "\n".join(page(SETUP, [model("first", refused)], []))
    assert "- `P`, first: error of the compiler" in text


def test_figures_survive_a_file():
    models = [model("first", timed("P", 1.5), unchanged("Q"))]
    data = json.loads(json.dumps(to_dict(SETUP, models)))
    assert from_dict(data) == (SETUP, models)
    assert data["verdicts"][0]["sentence"].startswith("It pays on 1 model")


def test_only_optional_passes_are_left_out():
    names = optional_passes()
    assert not REQUIRED & set(names)
    assert "FuseOperators" in names
    assert optional_passes(["FuseOperators"]) == ["FuseOperators"]
    for name in ("LegalizeOps", "ScheduleKernels", "NoSuchPass"):
        with pytest.raises(TvmExtError, match=name):
            optional_passes([name])


def test_each_part_of_the_pipeline_can_be_built():
    level = load_pipelines()[LEVEL]
    for place in range(len(level.graph) + len(level.lower)):
        build_pipeline(LEVEL, own=pipeline_up_to(place))


@pytest.mark.slow
def test_a_real_model_is_measured(tiny_model_path: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("TVM_EXT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVM_EXT_CACHE", "off")
    json_path, page_path = tmp_path / "figures.json", tmp_path / "page.md"
    given = [str(tiny_model_path), "--passes", "FuseOperators", "--alternations", "1"]
    given += ["--seconds", "0.001", "--json", str(json_path), "--page", str(page_path)]
    assert passes.main(given) in (0, 1)
    (found,) = json.loads(json_path.read_text())["models"]
    (removal,) = found["removals"]
    assert removal["figures"]["calls"] > found["usual"]["calls"]
    assert removal["difference"] < 1e-5
    behind = {one["name"]: one for one in found["effects"] if one["changed"]}
    assert behind["FuseTIR"]["planned_bytes"] is not None
    text = page_path.read_text()
    assert "`FuseOperators`" in text
    assert str(tmp_path) not in text
    other = tmp_path / "again.md"
    passes.main(["--read", str(json_path), "--page", str(other)])
    assert text.partition("## Verdicts")[2] == other.read_text().partition("## Verdicts")[2]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "there is nothing to measure"),
        (["x.onnx", "--threads", "0"], "--threads is 0"),
        (["x.onnx", "--alternations", "0"], "--alternations is 0"),
        (["x.onnx", "--passes", "LegalizeOps"], "cannot be left out"),
        (["--read", "no_such_file.json"], "cannot be read"),
    ],
)
def test_wrong_use_is_one_line(given, said, capsys):
    assert passes.main(given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
