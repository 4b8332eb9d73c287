"""The report of a model on a mesh: text, page, JSON, and the drawings that they are made of."""

import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from page_parser import Page
from rich.console import Console, Group
from small_models import mlp
from wafer_models import layers_cost, small_mesh

from tvm_ext.wafer.model_cost import model_cost
from tvm_ext.wafer.report_drawings import (
    BOTTOM,
    LEFT,
    LEVELS,
    MOST_CELLS,
    RIGHT,
    TOP,
    RooflinePoint,
    heat_map,
    region_map,
    roofline,
    roofline_point,
)
from tvm_ext.wafer.report_figures import (
    format_large,
    overall_efficiency,
    placement_figures,
    wafer_json,
)
from tvm_ext.wafer.report_page import render_wafer_html
from tvm_ext.wafer.report_text import program_parts, wafer_summary

HOSTILE = '<script>alert("1")</script>'


def text_of(part, width=120):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(part)
    return console.file.getvalue()


def hostile():
    """The cost with a name and a node that would break out of a page."""
    cost = layers_cost()
    first = replace(cost.kernels[0], name=HOSTILE, origins=(HOSTILE,) * 2, refusal=f"no {HOSTILE}")
    return replace(cost, model=HOSTILE, kernels=(first, *cost.kernels[1:]), notes=(HOSTILE,))


# Text


def test_text_names_kernels_schedules_and_placements():
    cost = layers_cost()
    text = text_of(wafer_summary(cost, cost.kernels, verbose=True))
    assert "modelled, not measured" in text
    for kernel in cost.kernels:
        assert kernel.name in text.replace("\n", "")
    assert "wafer matmul (groups=1," in text
    assert "whole wafer in turn" in text
    assert "pipelined regions" in text
    assert f"{cost.chosen.cycles:,.0f} cycles" in text
    assert "Does not run" not in text


def test_text_says_what_does_not_run():
    cost = model_cost(mlp("N"), "mesh16")
    text = text_of(wafer_summary(cost, cost.kernels))
    assert "Does not run on this mesh" in text
    assert f"! {cost.kernels[0].name}: a size is known only at run time" in text


def test_a_kernel_step_by_step():
    cost = layers_cost()
    kernel = next(one for one in cost.kernels if one.schedule == "wafer matmul")
    text = text_of(Group(*program_parts(cost, kernel)))
    assert f"{kernel.cost.rows} rows x {kernel.cost.columns} columns" in text
    for leaf, _ in kernel.program.leaves():
        assert f"{leaf.name}: " in text
    assert re.search(r"tensor 0  .*over rows", text)
    for name in kernel.program.buffers:
        assert f"  {name}: " in text


# JSON


def test_json_has_every_figure():
    cost = layers_cost()
    values = json.loads(json.dumps(wafer_json(cost, cost.kernels), allow_nan=False))
    assert values["modelled"] is True
    assert (values["chosen"], values["cycles"]) == (cost.chosen.name, cost.chosen.cycles)
    assert [one["name"] for one in values["kernels"]] == [one.name for one in cost.kernels]
    for kernel, found in zip(cost.kernels, values["kernels"], strict=True):
        assert found["cost"]["cycles"] == kernel.cost.cycles
        assert sum(found["cost"]["shares"].values()) == pytest.approx(1)
        assert found["grid"] == [kernel.cost.rows, kernel.cost.columns]
        assert "program" not in found
    assert sum(one["share"] for one in values["kernels"]) == pytest.approx(1)
    assert [one["kernel"] for one in values["calls"]] == [one.kernel for one in cost.flow.calls]
    for placement in values["placements"]:
        assert placement["cycles"] == pytest.approx(
            placement["kernel_cycles"] + placement["move_cycles"] + placement["stream_cycles"]
        )


def test_json_of_programs_has_works_and_transfers():
    cost = layers_cost()
    values = json.loads(json.dumps(wafer_json(cost, cost.kernels, with_programs=True)))
    items = [item for one in values["kernels"] for item in one["program"]["items"]]
    items += [inner for item in items for inner in item.get("items", [])]
    assert {"transfer", "work"} <= {item["kind"] for item in items}
    works = [item for item in items if item["kind"] == "work"]
    assert all(0 <= item["share"] <= 1 and item["elements"] > 0 for item in works)


def test_json_of_a_kernel_without_a_cost():
    cost = model_cost(mlp("N"), "mesh16")
    found = wafer_json(cost, cost.kernels)["kernels"][0]
    assert (found["cost"], found["grid"], found["share"]) == (None, None, None)
    assert found["refusal"]


# Page


def test_page_is_self_contained_and_whole():
    html = render_wafer_html(layers_cost())
    page = Page(html)
    assert page.open == []
    assert "script" not in page.tags
    assert all(address.startswith("#") for address in page.addresses)
    anchors = {values.get("id") for _, values in page.elements}
    assert {address[1:] for address in page.addresses} <= anchors
    assert "://" not in html
    assert "modelled" in page.text


def test_page_escapes_names():
    html = render_wafer_html(hostile())
    assert "<script" not in html
    assert "&lt;script" in html
    assert "Does not run on this mesh" in html


def test_drawings_have_words():
    html = render_wafer_html(layers_cost())
    drawn = [values for tag, values in Page(html).elements if values.get("role") == "img"]
    labels = [values["aria-label"] for values in drawn]
    assert any(re.match(r"Busy cycles of \d+ x \d+ PEs: least", label) for label in labels)
    assert any(label.startswith("SRAM of") for label in labels)
    assert any(label.startswith("Link words of") for label in labels)
    assert any("regions of 16x16 PEs" in label for label in labels)
    assert any("by operations a second of one PE" in label for label in labels)
    parts = [label for label in labels if label.startswith("compute ")]
    assert len(parts) == len(layers_cost().kernels)


def test_page_of_kernels_without_a_cost():
    page = Page(render_wafer_html(model_cost(mlp("N"), "mesh16")))
    assert page.open == []
    assert "No kernel has a cost." in page.text
    assert "No kernel computes anything." in page.text


# Drawings


def cells_of(drawn):
    """The shade of each cell, from the paths."""
    levels = np.zeros((drawn.rows, drawn.columns), int)
    for level, path in drawn.paths:
        for x, y, width, height in re.findall(r"M(\d+) (\d+)h(\d+)v(\d+)H\d+z", path):
            part = levels[int(y) : int(y) + int(height), int(x) : int(x) + int(width)]
            assert not part.any(), "two shades in one cell"
            part[:] = level
    return levels


def test_heat_map_shows_each_cell_once_from_none_to_the_most():
    values = np.array([[0.0, 1.0, 10.0], [5.0, 5.0, 100.0], [5.0, 5.0, 0.1]])
    drawn = heat_map("Things", values, lambda value: f"{value:g} x")
    assert cells_of(drawn).tolist() == [[0, 1, 1], [1, 1, LEVELS], [1, 1, 1]]
    assert (drawn.most, drawn.least) == ("100 x", "0 x")
    assert drawn.description == (
        f"Things of 3 x 3 PEs: least 0 x, mean {values.mean():g} x, most 100 x, first at row 1, "
        "column 2"
    )


@pytest.mark.parametrize("number", [4066.351196001362, 0.1, 1 / 3, 8.7e9])
def test_what_is_alike_everywhere_has_the_darkest_shade(number):
    drawn = heat_map("Things", np.full((3, 2), number), str)
    assert (cells_of(drawn) == LEVELS).all()


def test_heat_map_of_a_large_grid_shows_the_largest_of_each_block():
    values = np.ones((994, 750))
    values[993, 749] = 10.0
    drawn = heat_map("Things", values, str)
    assert (drawn.rows, drawn.columns) == (MOST_CELLS, MOST_CELLS)
    levels = cells_of(drawn)
    assert levels[-1, -1] == LEVELS
    assert (levels == LEVELS).sum() == 1
    assert len("".join(path for _, path in drawn.paths)) < 200


def test_heat_map_of_nothing():
    drawn = heat_map("Things", np.zeros((2, 5)), str)
    assert drawn.paths == []
    assert drawn.description.endswith("none")


def test_roofline_marks_are_below_the_roofs():
    cost = layers_cost()
    points = [roofline_point(kernel, 1) for kernel in cost.kernels]
    drawn = roofline([point for point in points if point], cost.mesh, ["float32"])
    lines = [np.array(re.findall(r"[\d.]+", roof.path), float) for roof in drawn.roofs]
    compute = lines[0][1]
    for mark in drawn.marks:
        assert LEFT <= mark.x <= RIGHT
        assert compute <= mark.y <= BOTTOM
    assert {roof.kind for roof in drawn.roofs} == {"compute", "sram", "link"}
    assert all(TOP <= tick.at <= BOTTOM for tick in drawn.y_ticks)


def test_roofline_of_a_product_counts_the_bytes_of_its_words():
    cost = layers_cost()
    number, kernel = next(
        (n, one) for n, one in enumerate(cost.kernels, 1) if one.schedule == "wafer matmul"
    )
    point = roofline_point(kernel, number)
    used = kernel.cost.rows * kernel.cost.columns
    assert point.rate == pytest.approx(kernel.cost.flops / kernel.cost.seconds / used)
    assert point.rate * used <= cost.mesh.peak_flops("float32") * used / 256
    assert 0 < point.sram_intensity < 2
    assert 0 < point.link_intensity < math.inf


def test_close_marks_share_their_numbers():
    points = [RooflinePoint(n, f"k{n}", 1e8, 1.0, math.inf) for n in (1, 2, 5)]
    far = RooflinePoint(7, "far", 1e8, 100.0, 1.0)
    drawn = roofline([*points, far], small_mesh(), [])
    assert [mark.numbers for mark in drawn.marks if mark.kind == "sram"] == ["1 +2", "", "", "7"]
    assert [mark.numbers for mark in drawn.marks if mark.kind == "link"] == ["7"]
    assert roofline([], small_mesh(), []) is None


def test_region_map_covers_the_wafer():
    cost = layers_cost()
    pipeline = cost.placements[1]
    drawn = region_map(cost, pipeline)
    assert sum(cell.width * cell.height for cell in drawn.cells) == 16 * 16
    assert max(cell.level for cell in drawn.cells) == LEVELS
    assert drawn.slowest[0].cycles == pipeline.interval_cycles
    assert region_map(cost, cost.placements[0]) is None


# Figures


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (1000, "1.00k"), (12_345, "12.3k"), (1.2e9, "1.20G")],
)
def test_large_counts(value, text):
    assert format_large(value) == text


def test_figures_add_up():
    cost = layers_cost()
    for placement in cost.placements:
        figures = placement_figures(cost, placement)
        assert figures.runs_per_second == pytest.approx(
            cost.mesh.clock_mhz * 1e6 / placement.interval_cycles
        )
        assert figures.bytes_per_pe <= cost.mesh.usable_bytes
    assert 0 < overall_efficiency(cost, cost.chosen) < 1
