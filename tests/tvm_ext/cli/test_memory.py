"""``tvm-ext memory``: the plan in figures, as JSON, and drawn."""

import re
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from commands import as_json, refused, succeed
from small_models import model, node, value


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A sum in place, and a name that HTML has to escape."""
    file = tmp_path_factory.mktemp("memory") / "small.onnx"
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first <&> product"),
        node("Softmax", ["a"], ["b"], name="shares", axis=-1),
        node("MatMul", ["b", "w"], ["c"], name="second product"),
        node("Add", ["c", "a"], ["d"], name="sum"),
        node("Softmax", ["d"], ["y"], name="last", axis=-1),
    ]
    weights = np.random.default_rng(0).standard_normal((96, 96)).astype("float32")
    inputs, outputs = [value("x", ["N", 96])], [value("y", ["N", 96])]
    onnx.save(model(nodes, inputs, outputs, w=weights), file)
    return file


SHAPE = ("--input-shape", "x=64,96")
TENSOR = 64 * 96 * 4


@pytest.mark.extended
def test_the_plan_as_json(path):
    found = as_json("memory", path, *SHAPE, "-O", "0")
    memory, (main,) = found["memory"], found["plan"]["functions"]
    assert main["arena_bytes"] >= max(main["live_bytes"]) == main["live_bytes"][main["peak_call"]]
    assert len(main["calls"]) == len(main["live_bytes"]) == 5
    assert memory["planned_peak_bytes"] == main["arena_bytes"] + TENSOR
    assert found["tvm_bytes"] >= memory["planned_peak_bytes"]
    first = main["tensors"][0]
    assert (first["name"], first["size"]) == ("first <&> product", TENSOR)
    assert first["type"] == "64x96 float32"
    # It is read last by the sum.
    assert (first["first"], first["last"]) == (0, 3)
    (sum_,) = [one for one in main["tensors"] if one["name"] == "sum"]
    assert sum_["in_place_of"] in ("first <&> product", "second product")


def test_the_plan_as_text(path):
    text = succeed("memory", path, *SHAPE, "-O", "0")
    assert re.search(r"Peak memory +\d", text)
    assert re.search(r"TVM's planner .* times the plan", text)
    assert "needs most" in text
    assert "first <&> product" in text
    assert "Written over" in succeed("memory", path, *SHAPE, "-O", "0", "--verbose")


@pytest.mark.extended
def test_the_drawing_is_one_file_with_a_rectangle_for_each_value(path, tmp_path):
    file = tmp_path / "plan.svg"
    succeed("memory", path, *SHAPE, "-O", "0", "-o", file)
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text or "" for title in root.iter(f"{space}title")]
    assert len(titles) == 4
    assert any(one.startswith("first <&> product\n64x96 float32, 24.0 KiB") for one in titles)
    assert all("first use: call " in one and "last use: call " in one for one in titles)


@pytest.mark.extended
def test_the_page_needs_nothing_else(path, tmp_path):
    file = tmp_path / "plan.html"
    succeed("memory", path, *SHAPE, "-o", file)
    page = file.read_text(encoding="utf-8")
    assert "first &lt;&amp;&gt; product" in page
    assert not re.search(r"(src|href)=\"(?!#)", page.replace('xmlns="http', ""))
    assert "<script" not in page


@pytest.mark.extended
def test_a_limit_is_met_or_refused(path):
    found = as_json("memory", path, *SHAPE, "-O", "0", "--memory-limit", "1MiB")
    assert found["memory"]["limit"]["limit_bytes"] == 2**20
    assert "the least" in refused("memory", path, *SHAPE, "--memory-limit", "1KiB")


@pytest.mark.extended
def test_sizes_that_a_run_decides(path, tmp_path):
    assert "decided in each run" in succeed("memory", path)
    said = refused("memory", path, "-o", tmp_path / "plan.svg")
    assert "--input-shape" in said
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_said_before_the_work(path, tmp_path):
    assert "expected .html or .svg" in refused("memory", path, "-o", tmp_path / "plan.png")
    assert "compiled model" in refused("memory", tmp_path / "plan.tvmx")
