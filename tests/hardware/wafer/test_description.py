"""Meshes: numbers agree with what is published, and contradictions are refused."""

import numpy as np
import pytest
import tvm
from pydantic import ValidationError
from tvm.script import tirx as T

from tvm_ext.configs.errors import ConfigError, TargetError
from tvm_ext.configs.loader import config_folder
from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.targets import compiling_for, program_target, resolve_target
from tvm_ext.hardware.wafer.description import WaferDescription

MESHES = ["wse2", "wse3", "mesh16"]


def mesh(name: str = "wse2", **changes: object) -> WaferDescription:
    found = resolve_target(name)
    assert isinstance(found, WaferDescription)
    return WaferDescription(**(found.model_dump() | changes))


def test_peaks_are_those_published_for_the_second_generation():
    # 850,000 PEs at 0.85 GHz: 5.8 PFLOP/s of float16 with 8 operations a cycle (SC22, section
    # IV.A), 17.3 PB/s with 24 bytes a cycle.
    wse2 = mesh()
    all_pes = 850_000 / wse2.processing_elements
    assert wse2.peak_flops("float16") * all_pes == pytest.approx(5.8e15, rel=0.01)
    assert wse2.bandwidth(1.0) * all_pes == pytest.approx(17.3e15, rel=0.01)
    assert mesh("wse3").vector_lanes("float16") == 2 * wse2.vector_lanes("float16") == 8


def test_types_without_arithmetic_of_their_own():
    wse2 = mesh()
    assert wse2.element_cycles("bfloat16") == wse2.element_cycles("float32") == 1
    assert wse2.element_cycles("float64") == 2
    assert wse2.vector_lanes("float64") == 1


def test_what_the_memories_do_not_hold_comes_over_the_host_link():
    small = mesh("mesh16")
    held = small.usable_bytes * 256
    ratio = small.bandwidth(held) / small.bandwidth(held + 1)
    assert ratio == pytest.approx(256 * 24 / (0.868 * 4))


def test_cycles_are_converted_with_its_own_clock():
    wse2 = mesh()
    assert wse2.seconds(850e6) == 1
    assert wse2.cycles(wse2.seconds(1234)) == pytest.approx(1234)
    assert mesh(clock_mhz=1100.0).seconds(1100e6) == 1


def test_what_is_left_for_programs():
    wse2 = mesh()
    assert (wse2.usable_bytes, wse2.usable_colours) == (49_152 - 6_144, 21)
    assert mesh("mesh16").usable_colours == 24


def test_roofline_of_a_mesh_has_its_start_and_its_peak():
    wse2 = mesh()
    costs = cost_model(wse2)
    assert costs.seconds(Work(0, 0)) == wse2.seconds(wse2.launch_cycles)
    per_operation = (costs.seconds(Work(1e15, 1.0)) - costs.seconds(Work(0, 0))) / 1e15
    assert per_operation == pytest.approx(1 / wse2.peak_flops("float32"))


def test_grids_are_smaller_rectangles():
    wse2 = mesh()
    grid = wse2.with_grid(480, 480)
    assert (grid.processing_elements, wse2.processing_elements) == (480 * 480, 745_500)
    assert grid.fabric_rows == wse2.fabric_rows
    for rows, columns in ((0, 4), (995, 4), (4, 751)):
        with pytest.raises(TargetError, match=f"with {rows}x{columns} PEs .*1x1 to 994x750"):
            wse2.with_grid(rows, columns)


def test_a_mesh_has_no_cores():
    with pytest.raises(TargetError, match="it is a mesh; expected rows and columns: use with_grid"):
        mesh().with_cores(2)


@pytest.mark.parametrize("name", MESHES)
def test_tvm_target_and_back(name):
    assert resolve_target(resolve_target(name).tvm_target()) is resolve_target(name)


def test_each_description_is_a_device_of_its_own():
    wse2 = mesh()
    others = [wse2.with_grid(4, 4), mesh(clock_mhz=1100.0), mesh("wse3"), mesh(relay_cycles=25)]
    assert len({wse2.device, *(other.device for other in others)}) == 5
    assert mesh(summary="other words").device == wse2.device
    assert wse2.tvm_target().attrs["device"] == wse2.device
    assert wse2.device.startswith("wse2-")


def test_a_changed_mesh_is_found_again_only_where_it_is_compiled_for():
    grid = mesh().with_grid(8, 8)
    with compiling_for(grid) as target:
        assert resolve_target(target) is grid
    with pytest.raises(TargetError, match=f"device '{grid.device}' .* is no preset's mesh"):
        resolve_target(target)
    arm = tvm.target.Target({"kind": "llvm", "mcpu": "generic", "device": "arm_cpu"})
    assert resolve_target(arm).kind == "cpu"


def test_modules_for_a_mesh_run_here():
    @T.prim_func
    def double(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")) -> None:
        T.func_attr({"global_symbol": "double"})
        for i in range(8):
            b[i] = a[i] * T.float32(2)

    built = tvm.tirx.build(tvm.IRModule({"double": double}), target=mesh().tvm_target())
    source = tvm.runtime.tensor(np.arange(8, dtype="float32"))
    result = tvm.runtime.tensor(np.zeros(8, dtype="float32"))
    built["double"](source, result)
    np.testing.assert_array_equal(result.numpy(), 2 * np.arange(8))


def test_read_only_and_hashable():
    wse2 = mesh()
    with pytest.raises(ValidationError, match="frozen"):
        wse2.rows = 1
    assert len({wse2, wse2.model_copy(), wse2.with_grid(1, 1)}) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 997}, "997x750 PEs is larger than the fabric of 996x757"),
        ({"columns": 758}, "larger than the fabric"),
        ({"rows": 0}, "greater than 0"),
        ({"banks": 4}, "4 banks of 6144 bytes are not the 49152"),
        ({"reserved_bytes": 49_152}, "expected room for data"),
        ({"reserved_colours": (24,)}, "reserved_colours has 24; expected colours from 0 to 23"),
        ({"reserved_colours": (3, 3)}, "twice"),
        ({"reserved_colours": tuple(range(24))}, "all colours"),
        ({"cycles_per_element": {"float16": 0.25}}, "no float32"),
        ({"cycles_per_element": {"float32": 1.0, "float99x": 1.0}}, "'float99x', which is no type"),
        ({"conflict_factor": 0.5}, "conflict_factor"),
        ({"word_bytes": 8}, "a wavelet has 32 bits"),
        ({"link_bytes_per_cycle": 8}, "one wavelet a cycle"),
        ({"active_watts": 1.0}, "below idle_watts"),
        ({"clock_mhz": 0.0}, "clock_mhz"),
        ({"row": 4}, "row"),
    ],
)
def test_impossible_meshes_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        mesh(**changes)


def test_a_users_mesh(tmp_path):
    path = tmp_path / "mine.toml"
    text = (config_folder("targets") / "mesh16.toml").read_text(encoding="utf-8")
    path.write_text(text.replace('"mesh16"', '"mine"').replace("\nrows = 16", "\nrows = 8"))
    assert resolve_target(path).processing_elements == 128
    path.write_text(text.replace("\nrows = 16", "\nrows = 17"))
    with pytest.raises(ConfigError, match=r"mine\.toml: the rectangle of 17x16 PEs"):
        resolve_target(path)


def test_programs_of_kernels_are_not_for_meshes():
    assert program_target("avx2").name == "avx2"
    with pytest.raises(TargetError, match="target 'mesh16' is a mesh") as caught:
        program_target("mesh16")
    assert "\n" not in str(caught.value)
