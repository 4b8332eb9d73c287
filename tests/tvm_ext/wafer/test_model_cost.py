"""The cost of whole models: kernels, placements, memory, refusals."""

import pytest
from small_models import mlp
from wafer_models import layers, layers_cost, small_mesh, turned

from tvm_ext.errors import RecordsError, TargetError
from tvm_ext.hardware.wafer.program_cost import program_cost
from tvm_ext.tune_model import tune
from tvm_ext.wafer.model_cost import model_cost
from tvm_ext.wafer.placement import IN_TURN, PIPELINED


def placement(cost, name):
    return next(one for one in cost.placements if one.name == name)


# Kernels


def test_every_kernel_has_its_schedule_and_cost():
    cost = layers_cost()
    assert {call.kernel for call in cost.flow.calls} == {kernel.name for kernel in cost.kernels}
    assert sum(kernel.calls for kernel in cost.kernels) == len(cost.flow.calls)
    cycles = [kernel.cycles for kernel in cost.kernels]
    assert cycles == sorted(cycles, reverse=True)
    for kernel in cost.kernels:
        assert kernel.program is not None
        assert kernel.cost == program_cost(kernel.program, cost.mesh)
        assert len(kernel.origins) == kernel.calls
    product = next(kernel for kernel in cost.kernels if kernel.schedule == "wafer matmul")
    assert product.decisions["rows"] == product.cost.rows // product.decisions["groups"]
    assert "matmul0" in " ".join(product.node_names)


def test_a_target_that_is_no_mesh_is_refused():
    with pytest.raises(TargetError, match="'avx2' is not a mesh; expected"):
        model_cost(layers(), "avx2")


def test_records_have_to_be_there(tmp_path):
    with pytest.raises(RecordsError, match="no folder of records"):
        model_cost(layers(), "mesh16", tmp_path / "none")


def test_sizes_known_only_at_run_time_are_named():
    cost = model_cost(mlp("N"), "mesh16")
    assert {kernel.cost for kernel in cost.refused} == {None}
    assert "freeze it with --input-shape" in cost.refused[0].refusal
    assert cost.refused[0].name in cost.chosen.refusal
    assert model_cost(mlp("N"), "mesh16", input_shapes={"x": [8, 6]}).refused == ()


def test_a_kernel_that_does_not_fit_is_refused():
    tight = small_mesh(sram_bytes=2048, bank_bytes=256, reserved_bytes=2040)
    cost = model_cost(layers(), tight)
    assert "SRAM" in cost.refused[0].refusal
    assert cost.chosen.refusal.startswith(cost.refused[0].name)


# Placements


def test_in_turn_is_the_sum_of_kernels_and_moves():
    cost = layers_cost()
    found = placement(cost, IN_TURN)
    (stage,) = found.stages
    by_name = {kernel.name: kernel.cost.cycles for kernel in cost.kernels}
    kernels = sum(by_name[call.kernel] for call in cost.flow.calls)
    assert stage.kernel_cycles == pytest.approx(kernels)
    moves = sum(move.change.cycles for move in found.moves)
    assert found.cycles == found.interval_cycles == pytest.approx(kernels + moves)
    assert stage.stream_cycles == 0


def test_a_tensor_moves_only_where_its_layouts_differ():
    cost = model_cost(turned(), "mesh16")
    moved = {(move.call, move.operand) for move in placement(cost, IN_TURN).moves}
    programs = {kernel.name: kernel.program for kernel in cost.kernels}
    for call in cost.flow.calls:
        for number, tensor in enumerate(call.operands):
            if tensor.producer < 0:
                assert (call.position, number) not in moved
    # The view is cut elsewhere than the product that it comes from.
    second = cost.flow.calls[-1]
    need = programs[second.kernel].homes[0]
    have = programs[cost.flow.calls[-2].kernel].homes[2]
    assert (need.rows, need.columns) != (have.rows, have.columns)
    assert (second.position, 0) in moved


def test_weights_that_do_not_fit_are_streamed():
    full = placement(layers_cost(), IN_TURN).stages[0]
    # Room for two of the three weights: one stays, the others take turns with the second place.
    usable = full.bytes_per_pe - full.weight_bytes // 3
    tight = small_mesh(reserved_bytes=49_152 - usable)
    cost = model_cost(layers(), tight)
    stage = placement(cost, IN_TURN).stages[0]
    assert cost.refused == ()
    assert stage.refusal == ""
    assert stage.bytes_per_pe <= usable
    assert stage.streamed_bytes == 2 * 32 * 32 * 4
    assert stage.weight_bytes == full.weight_bytes // 3
    words = stage.streamed_bytes / 4
    assert stage.stream_cycles == pytest.approx(words / tight.io_words_per_cycle)
    assert stage.cycles == pytest.approx(full.cycles + stage.stream_cycles)


def test_weights_lie_side_by_side_before_they_are_streamed():
    loose = layers_cost(4)
    full = placement(loose, IN_TURN).stages[0]
    assert not full.is_spread
    tight = small_mesh(reserved_bytes=49_152 - (full.bytes_per_pe - 4))
    stage = placement(model_cost(layers(rows=4), tight), IN_TURN).stages[0]
    assert stage.bytes_per_pe < full.bytes_per_pe
    assert stage.is_spread or stage.streamed_bytes


def test_a_pipeline_gives_more_results_a_second():
    cost = layers_cost()
    pipeline = placement(cost, PIPELINED)
    calls = [position for stage in pipeline.stages for position in stage.calls]
    assert calls == list(range(len(cost.flow.calls)))
    assert len(pipeline.stages) > 1
    assert pipeline.interval_cycles == max(stage.cycles for stage in pipeline.stages)
    assert pipeline.cycles == pytest.approx(sum(stage.cycles for stage in pipeline.stages))
    assert pipeline.interval_cycles < placement(cost, IN_TURN).cycles
    for stage in pipeline.stages:
        region = stage.region
        assert region.row + region.rows <= 16
        assert region.column + region.columns <= 16


def test_values_that_wait_for_a_later_stage_take_room():
    """The first result is read by the last kernel as well: it waits there for as many runs as
    there are stages between them.
    """
    pipeline = placement(layers_cost(), PIPELINED)
    flow = layers_cost().flow
    first, last = pipeline.stages[0], pipeline.stages[-1]
    assert (first.calls[0], last.calls[-1]) == (0, len(flow.calls) - 1)
    key = flow.calls[0].results[0].key
    position = [tensor.key for tensor in flow.calls[-1].operands].index(key)
    move = next(one for one in last.moves if (one.call, one.operand) == (last.calls[-1], position))
    waiting = move.change.words * 4 * (len(pipeline.stages) - 1)
    others = max(kernel.cost.bytes_per_pe for kernel in layers_cost().kernels)
    assert waiting > 0
    assert last.bytes_per_pe >= waiting
    assert last.bytes_per_pe <= waiting + 2 * others


def test_the_shorter_run_is_chosen():
    cost = layers_cost()
    assert cost.chosen.cycles == min(one.cycles for one in cost.placements)


def test_one_kernel_has_no_pipeline():
    cost = model_cost(layers(1), "mesh16")
    # The addition is fused, or there are two kernels.
    assert len(cost.placements) == (1 if len(cost.flow.calls) == 1 else 2)


def test_the_host_link_carries_inputs_and_outputs():
    cost = layers_cost()
    there, back = cost.host_cycles
    words = 16 * 32
    assert there == pytest.approx(words / cost.mesh.io_words_per_cycle)
    assert back == pytest.approx(words / cost.mesh.io_return_words_per_cycle)


# Records


@pytest.mark.slow
def test_records_of_a_tuning_session_are_used(tmp_path, worker_stock):
    with worker_stock.lent():
        tune(layers(), "mesh16", work_dir=tmp_path, trials=3, effort="quick", only=["matmul0*"])
    plain, tuned = layers_cost(), model_cost(layers(), "mesh16", tmp_path)
    by_source = {kernel.source: kernel for kernel in tuned.kernels}
    assert set(by_source) == {"record", "template"}
    found = by_source["record"]
    before = next(kernel for kernel in plain.kernels if kernel.name == found.name)
    assert found.cost.cycles <= before.cost.cycles
    assert found.decisions
    assert (
        found.reason
        == f"{found.schedule} ({', '.join(f'{k}={v}' for k, v in found.decisions.items())})"
    )
