"""``tvm-ext explain``: kernels by modelled time, and what is known of one."""

import numpy as np
import onnx
import pytest
from commands import as_json, refused, succeed
from small_models import model, node, value


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    file = tmp_path_factory.mktemp("explain") / "columns.onnx"
    nodes = [
        node("CumSum", ["x", "axis"], ["sums"], name="running sums"),
        node("Transpose", ["sums"], ["turned"], name="turned", perm=[1, 0]),
        node("Softmax", ["turned"], ["y"], name="shares", axis=-1),
    ]
    inputs, outputs = [value("x", ["N", 96])], [value("y", [96, "N"])]
    onnx.save(model(nodes, inputs, outputs, axis=np.array(0, "int64")), file)
    return file


SHAPE = ("--input-shape", "x=64,96")


def test_the_kernels_by_modelled_time(path):
    found = as_json("explain", path, *SHAPE)
    assert found["modelled"]
    seconds = [one["calls"] * one["modelled_seconds"] for one in found["kernels"]]
    assert seconds == sorted(seconds, reverse=True)
    assert {"running sums"} <= {name for one in found["kernels"] for name in one["origins"]}
    assert len(as_json("explain", path, *SHAPE, "--top", "1")["kernels"]) == 1


@pytest.mark.extended
def test_one_kernel_by_a_part_of_its_node(path):
    (one,) = as_json("explain", path, "running", *SHAPE)["kernels"]
    roofline = one["roofline"]
    assert roofline["bytes"] == 2 * 64 * 96 * 4
    assert roofline["limit"] == "memory"
    # The pass put columns into the lanes of vectors.
    (read,) = [a for a in one["accesses"] if a["tensor"] == "x" and a["lanes"] > 16]
    assert (read["pattern"], read["is_store"], read["strides"][-1]["elements"]) == (
        "contiguous",
        False,
        1,
    )
    plain = as_json("explain", path, "running", *SHAPE, "--disable-pass", "CoalesceAccesses")
    (read,) = [a for a in plain["kernels"][0]["accesses"] if a["tensor"] == "x"]
    assert read["pattern"] == "strided"
    assert [r["is_spatial"] for r in read["reuse"]] == [True]


@pytest.mark.extended
def test_a_kernel_by_its_own_name(path):
    (named,) = as_json("explain", path, "running", *SHAPE)["kernels"]
    assert as_json("explain", path, named["name"], *SHAPE)["kernels"][0] == named


@pytest.mark.extended
def test_a_gpu_counts_sectors_and_banks(path):
    found = as_json("explain", path, *SHAPE, "--target", "nvidia-h100")
    accesses = [a for one in found["kernels"] for a in one["accesses"]]
    assert {a["unit"] for a in accesses} == {"sectors", "cycles"}
    assert {a["memory"] for a in accesses} == {"global", "shared"}


@pytest.mark.extended
def test_sizes_of_dynamic_dimensions_are_named(path):
    assert as_json("explain", path)["sizes"] == {"N": 1}
    assert "\nFigures for N=1\n" in succeed("explain", path)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "nvidia-h100"])
def test_tables_fit_eighty_columns(path, target, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = succeed("explain", path, *SHAPE, "--target", target)
    told = succeed("explain", path, "shares", *SHAPE, "--target", target)
    for text in (listed, told):
        assert "modelled, not measured" in text
        assert all(len(line) <= 80 for line in text.splitlines())
    assert "Roofline" in told
    more = succeed("explain", path, "shares", *SHAPE, "--target", target, "--verbose")
    assert len(more) > len(told)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["attention"], "expected a part of one"),
        (["--target", "wse2"], "tvm-ext wafer explain"),
        (["--target", "nowhere"], "unknown target"),
    ],
)
def test_refusals(path, arguments, said):
    assert said in refused("explain", path, *arguments)


def test_a_compiled_model_is_refused(tmp_path):
    assert "expected an ONNX model" in refused("explain", tmp_path / "a.tvmx")
