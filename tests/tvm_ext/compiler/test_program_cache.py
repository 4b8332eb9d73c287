"""The cache of compiled models: what hits, what misses, and what is not trusted."""

import json
import os
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from small_models import model, rand, value
from thoroughness import one_in

import tvm_ext
from tvm_ext.compiler import program_cache as program_cache_module
from tvm_ext.compiler.program_cache import (
    FOLDER,
    LIMIT,
    SWITCH,
    ProgramCache,
    program_cache,
    program_key,
)
from tvm_ext.errors import ConfigError, InputError, ModelError, RecordsError
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import build_pipeline

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv(SWITCH, "on")
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(path: Path, scale: float = 1.0, rows: int | str = 2) -> Path:
    """``y = relu(x @ w)``."""
    weight = numpy_helper.from_array(np.full((4, 3), scale, np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Relu", ["m"], ["y"], name="relu"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 3])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, [weight])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path


def key_of(path: Path, target: str = "cpu", level: str = "O3", shapes=None, disabled=()) -> str:
    found = program_key(path, resolve_target(target), build_pipeline(level, disabled), shapes, ())
    assert found is not None
    return found


def result(model: tvm_ext.CompiledModel) -> np.ndarray:
    return model.run({"x": X})["y"]


def test_the_second_compilation_takes_the_first_one_s_program(tmp_path):
    path = written(tmp_path / "m.onnx")
    first, second = tvm_ext.compile(path), tvm_ext.compile(path)
    assert not first.report.is_from_cache
    assert second.report.is_from_cache
    assert [phase.name for phase in first.report.phases][-2:] == ["cache", "first run"]
    assert [phase.name for phase in second.report.phases] == ["set up", "cache"]
    assert second.report.kernels == first.report.kernels
    assert "from the cache" in second.report.to_text()
    np.testing.assert_array_equal(result(second), result(first))
    np.testing.assert_array_equal(result(first), np.maximum(X @ np.ones((4, 3)), 0))
    second.save(tmp_path / "m.tvmx")
    np.testing.assert_array_equal(result(tvm_ext.load(tmp_path / "m.tvmx")), result(first))


@pytest.mark.extended
def test_a_program_from_the_cache_is_compiled_again_for_other_shapes(tmp_path):
    path = written(tmp_path / "m.onnx", rows="N")
    again = [tvm_ext.compile(path) for _ in range(2)][1].compile_again({"x": [1, 4]})
    assert again.run({"x": X[:1]})["y"].shape == (1, 3)


@pytest.mark.extended
def test_a_profile_counts_the_work_of_symbolic_kernels(tmp_path):
    path = written(tmp_path / "m.onnx", rows="N")
    profiles = [tvm_ext.compile(path).profile({"x": X}, repeat=1) for _ in range(2)]
    kernels = [json.loads(profile.to_json())["kernels"] for profile in profiles]
    counted = [[(kernel["flops"], kernel["bytes"]) for kernel in each] for each in kernels]
    assert counted[0] == counted[1]
    assert counted[0][0][0] > 0


@pytest.mark.extended
def test_a_model_in_memory_is_found_again(tmp_path):
    model = onnx.load(written(tmp_path / "m.onnx"))
    assert not tvm_ext.compile(model).report.is_from_cache
    assert tvm_ext.compile(model).report.is_from_cache


def test_what_decides_about_a_program_is_in_its_key(tmp_path, monkeypatch):
    path = written(tmp_path / "m.onnx")
    (tmp_path / "other").mkdir()
    keys = [
        key_of(path),
        key_of(written(tmp_path / "other.onnx")),
        key_of(written(tmp_path / "other" / "m.onnx", scale=2.0)),
        key_of(path, "avx2"),
        key_of(path, level="O2"),
        key_of(path, disabled=["GemmFusion"]),
        key_of(path, shapes={"x": ["N", 4]}),
    ]
    monkeypatch.setenv("TVM_EXT_MEMORY_LIMIT", "1")
    keys.append(key_of(path))
    assert len(set(keys)) == len(keys)
    monkeypatch.delenv("TVM_EXT_MEMORY_LIMIT")
    assert key_of(path) == keys[0]


def test_weights_in_another_file_are_in_the_key(tmp_path):
    model = onnx.load(written(tmp_path / "inside.onnx"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    before = key_of(path)
    content = bytearray((tmp_path / "m.data").read_bytes())
    content[1] ^= 1
    (tmp_path / "m.data").write_bytes(content)
    assert key_of(path) != before


def test_records_are_in_the_key(tmp_path):
    path, records = written(tmp_path / "m.onnx"), tmp_path / "records"
    records.mkdir()
    machine, pipeline = resolve_target("cpu"), build_pipeline("O3")
    keys = set()
    for text in ("one", "two"):
        (records / "file").write_text(text)
        keys.add(program_key(path, machine, pipeline, None, records))
    assert len(keys | {key_of(path)}) == 3


def test_models_for_a_gpu_and_passes_of_others_are_not_kept(tmp_path):
    path = written(tmp_path / "m.onnx")
    pipeline = build_pipeline("O3")
    assert program_key(path, resolve_target("nvidia-h100"), pipeline, None, ()) is None

    @tvm.transform.module_pass(opt_level=0)
    def idle(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return mod

    tvm_ext.register_pass(idle, level="graph", name="Idle")
    try:
        assert program_key(path, resolve_target("cpu"), build_pipeline("O3"), None, ()) is None
    finally:
        registry.remove("Idle")
    timing = tvm.ir.instrument.PassTimingInstrument()
    with tvm.transform.PassContext(instruments=[timing]):
        assert program_key(path, resolve_target("cpu"), build_pipeline("O3"), None, ()) is None
    assert key_of(path)


def test_a_tvm_without_a_distribution_has_keys_too(tmp_path, monkeypatch):
    """One that was built from its sources."""

    def absent(name):
        raise metadata.PackageNotFoundError(name)

    path = written(tmp_path / "m.onnx")
    before = key_of(path)
    program_cache_module._versions.cache_clear()
    monkeypatch.setattr(metadata, "version", absent)
    try:
        assert key_of(path) != before
    finally:
        program_cache_module._versions.cache_clear()


def test_functions_in_options_are_not_in_a_key(tmp_path):
    path = written(tmp_path / "m.onnx")
    options = {"LayoutPlanning": {"convolution_cost": lambda *_: 1.0}}
    pipeline = build_pipeline("O3", (), options)
    assert program_key(path, resolve_target("cpu"), pipeline, None, ()) is None


def test_programs_that_cannot_run_here_are_not_kept(tmp_path):
    path = written(tmp_path / "m.onnx")
    assert program_key(path, resolve_target("aarch64-neon"), build_pipeline("O3"), None, ()) is None


@pytest.mark.extended
def test_a_file_that_changes_while_it_is_compiled_is_not_kept(tmp_path, folder, monkeypatch):
    path = written(tmp_path / "m.onnx")
    find = ProgramCache.find

    def change(cache, key):
        found = find(cache, key)
        written(path, scale=3.0)
        return found

    monkeypatch.setattr(ProgramCache, "find", change)
    tvm_ext.compile(path)
    assert not folder.exists()


@pytest.mark.parametrize("place", ["pipe", "../m.onnx", "/etc/hostname"])
def test_weights_in_no_file_of_the_model_s_are_not_read(tmp_path, place):
    (tmp_path / "inner").mkdir()
    model = onnx.load(written(tmp_path / "m.onnx"))
    path = tmp_path / "inner" / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "inner" / "pipe")
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        entry.value = place if entry.key == "location" else entry.value
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="external data"):
        tvm_ext.compile(path)


@pytest.mark.parametrize("shapes", [{"x": 5}, "x=1,2", [("x", [2, 4])]])
def test_wrong_arguments_are_refused_as_without_a_cache(tmp_path, shapes):
    with pytest.raises(InputError):
        tvm_ext.compile(written(tmp_path / "m.onnx"), input_shapes=shapes)


def test_a_folder_without_records_is_refused_as_without_a_cache(tmp_path):
    path, records = written(tmp_path / "m.onnx"), tmp_path / "records"
    tvm_ext.compile(path)
    records.mkdir()
    with pytest.raises(RecordsError):
        tvm_ext.compile(path, records=records)


@pytest.mark.extended
def test_a_profile_does_without_the_model_s_file(tmp_path):
    path = written(tmp_path / "m.onnx", rows="N")
    model = [tvm_ext.compile(path) for _ in range(2)][1]
    path.unlink()
    (kernel,) = json.loads(model.profile({"x": X}, repeat=1).to_json())["kernels"]
    assert kernel["flops"] > 0


def test_files_that_are_no_models_fail_as_without_a_cache(tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        tvm_ext.compile(tmp_path / "absent.onnx")
    (tmp_path / "m.onnx").write_bytes(b"location")
    with pytest.raises(ModelError):
        tvm_ext.compile(tmp_path / "m.onnx")


@pytest.mark.extended
@pytest.mark.parametrize("place", one_in(3, [0, 100, 5_000, -200, -3]))
def test_a_damaged_program_is_compiled_anew(tmp_path, folder, place):
    path = written(tmp_path / "m.onnx")
    wanted = result(tvm_ext.compile(path))
    (entry,) = folder.iterdir()
    content = bytearray(entry.read_bytes())
    content[place] ^= 0x40
    entry.write_bytes(content)
    again = tvm_ext.compile(path)
    assert not again.report.is_from_cache
    np.testing.assert_array_equal(result(again), wanted)
    assert tvm_ext.compile(path).report.is_from_cache


def chain(*operators: str) -> onnx.ModelProto:
    """Products, each of a width of its own, with an operator behind each."""
    weights, nodes, before = {}, [], "x"
    for place, operator in enumerate(operators):
        weights[f"w{place}"] = rand(8 + place, 9 + place, seed=place)
        nodes += [
            helper.make_node("MatMul", [before, f"w{place}"], [f"sum{place}"]),
            helper.make_node(operator, [f"sum{place}"], [f"y{place}"]),
        ]
        before = f"y{place}"
    return model(nodes, [value("x", [2, 8])], [value(before, None)], **weights)


OPERATORS = ("Softmax", "Exp", "Sigmoid", "Tanh", "Neg", "Abs", "Sigmoid", "Tanh")


def check_chain(proto: onnx.ModelProto) -> tvm_ext.CompiledModel:
    """The compiled model, whose numbers are ONNX Runtime's."""
    made = tvm_ext.compile(proto, opt_level="O1")
    x = {"x": rand(2, 8)}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    np.testing.assert_allclose(
        next(iter(made.run(x).values())), session.run(None, x)[0], rtol=1e-4, atol=1e-6
    )
    return made


@pytest.mark.extended
def test_a_model_that_changed_in_one_layer_has_the_code_of_the_others(folder):
    first = check_chain(chain(*OPERATORS))
    assert first.report.kernels_from_cache == 0
    kernels = len(first.report.kernels)
    changed = check_chain(chain("Relu", *OPERATORS[1:]))
    assert kernels - 3 <= changed.report.kernels_from_cache < kernels
    said = f"code for {changed.report.kernels_from_cache} kernels from the cache"
    assert said in changed.report.to_text()


@pytest.mark.slow
def test_kernels_of_one_name_are_told_apart_by_what_they_compute(folder):
    check_chain(chain(*OPERATORS))
    other = check_chain(chain(*OPERATORS[::-1]))
    assert other.report.kernels_from_cache < len(other.report.kernels)


@pytest.mark.extended
@pytest.mark.parametrize("place", one_in(3, [0, 40, -1]))
def test_a_damaged_kernel_is_made_anew(folder, place):
    proto = chain(*OPERATORS)
    kernels = len(check_chain(proto).report.kernels)
    for path in folder.glob("*.tvmx"):
        path.unlink()
    # Of kernels that the report counts, not of what computes sizes or calls all kernels.
    codes = {path: path.read_bytes() for path in sorted(folder.glob("*.o"))}
    objects = [p for p, code in codes.items() if b"matmul" in code and b"ffi_kernels_" not in code]
    damaged, swapped, taken, *_ = objects
    content = bytearray(damaged.read_bytes())
    content[place] ^= 1
    damaged.write_bytes(content)
    # Whole, and another kernel's.
    swapped.write_bytes(taken.read_bytes())
    assert check_chain(proto).report.kernels_from_cache == kernels - 2
    assert program_cache().delete_damaged() == []


@pytest.mark.slow
def test_kernels_count_for_the_limit_of_the_cache(folder, monkeypatch):
    check_chain(chain(*OPERATORS))
    cache = ProgramCache(folder, 30_000)
    cache.keep_objects({"0" * 64: b"object"})
    assert sum(entry.size for entry in cache.entries()) <= 30_000
    assert cache.find_object("0" * 64) == b"object"


@pytest.mark.extended
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no such permissions")
def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, folder):
    path = written(tmp_path / "m.onnx")
    tvm_ext.compile(path)
    folder.chmod(0o777)
    assert not tvm_ext.compile(path).report.is_from_cache
    folder.chmod(0o700)
    assert tvm_ext.compile(path).report.is_from_cache


@pytest.mark.extended
def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER, str(tmp_path / "file" / "cache"))
    path = written(tmp_path / "m.onnx")
    assert not any(tvm_ext.compile(path).report.is_from_cache for _ in range(2))


@pytest.mark.extended
def test_what_was_used_longest_ago_goes_first(tmp_path, folder):
    path = written(tmp_path / "m.onnx")
    model = tvm_ext.compile(path)
    cache = program_cache()
    size = cache.entries()[0].size
    cache.limit_bytes = 4 * size + size // 2
    for number, name in enumerate("abc"):
        cache.keep(name, model)
        os.utime(folder / f"{name}.tvmx", (number, number))
    assert cache.find("a") is not None
    cache.keep("d", model)
    assert {entry.path.stem for entry in cache.entries()} >= {"a", "d"}
    assert not (folder / "b.tvmx").exists()
    # None that leaves no room for others.
    cache.limit_bytes = 0
    cache.keep("e", model)
    assert not (folder / "e.tvmx").exists()


@pytest.mark.extended
def test_unfinished_files_are_deleted_after_a_while(tmp_path, folder):
    folder.mkdir(mode=0o700)
    for name, age in (("old", 1), ("new", None)):
        (folder / f".{name}.tmp").write_text("")
        if age is not None:
            os.utime(folder / f".{name}.tmp", (age, age))
    tvm_ext.compile(written(tmp_path / "m.onnx"))
    assert [path.name for path in folder.glob(".*")] == [".new.tmp"]


def test_variables(monkeypatch):
    for switch in ("off", "OFF", "0"):
        monkeypatch.setenv(SWITCH, switch)
        assert program_cache() is None
    monkeypatch.delenv(SWITCH)
    monkeypatch.setenv(LIMIT, "0.5")
    assert program_cache().limit_bytes == 2**29
    for limit in ("much", "inf", "nan"):
        monkeypatch.setenv(LIMIT, limit)
        with pytest.raises(ConfigError, match=f"TVM_EXT_CACHE_GIB is '{limit}'; expected a number"):
            program_cache()
    monkeypatch.delenv(LIMIT)
    monkeypatch.delenv(FOLDER)
    assert program_cache().folder.name == "programs"
