"""``tvm-ext wafer explain``: what it prints and writes, and its exit codes."""

import json
import re
from functools import partial

import commands
import onnx
import pytest
from small_models import mlp
from wafer_models import layers, small_mesh

invoke = partial(commands.invoke, "wafer", "explain")
succeed = partial(commands.succeed, "wafer", "explain")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("wafer") / "layers.onnx"
    onnx.save(layers(), path)
    return path


@pytest.fixture
def tight_target(tmp_path):
    """A mesh with room for 60 bytes in a PE."""
    values = small_mesh(sram_bytes=2048, bank_bytes=256, reserved_bytes=1988).model_dump()
    lines = []
    for name, value in values.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{key} = {number}" for key, number in value.items())
            lines.append(f"{name} = {{ {inner} }}")
        else:
            lines.append(f"{name} = {json.dumps(value)}")
    path = tmp_path / "tight.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.extended
def test_text_and_page(model_path, tmp_path):
    page = tmp_path / "wafer.html"
    printed = succeed(model_path, "--target", "mesh16", "--html", page)
    assert printed.splitlines()[0].startswith("layers  optimisation O3, target mesh16")
    assert "wafer matmul" in printed
    assert f"Saved {page}" in printed
    assert "</html>" in page.read_text(encoding="utf-8")


@pytest.mark.extended
def test_json_is_all_that_is_printed(model_path, tmp_path):
    page = tmp_path / "wafer.html"
    values = json.loads(succeed(model_path, "--target", "mesh16", "--json", "--html", page))
    assert (values["model"], values["target"]) == ("layers", "mesh16")
    assert {one["schedule"] for one in values["kernels"]} >= {"wafer matmul"}
    assert page.is_file()


@pytest.mark.extended
def test_one_kernel_by_name_or_node(model_path):
    names = [
        one["name"]
        for one in json.loads(invoke(model_path, "-t", "mesh16", "--json").stdout)["kernels"]
    ]
    printed = succeed(model_path, "-t", "mesh16", "--kernel", names[0])
    assert "Program of one PE" in printed
    assert names[1] not in printed
    by_node = json.loads(
        invoke(model_path, "-t", "mesh16", "--kernel", "matmul0", "--json").stdout
    )["kernels"]
    assert len(by_node) == 1
    assert by_node[0]["program"]["items"]


@pytest.mark.extended
def test_an_unknown_kernel_is_named(model_path):
    result = invoke(model_path, "-t", "mesh16", "--kernel", "conv*")
    assert result.exit_code == 2
    assert "no kernel or node matches 'conv*'" in result.stderr


@pytest.mark.extended
def test_a_kernel_that_breaks_a_limit_ends_with_1(model_path, tight_target):
    result = invoke(model_path, "--target", tight_target)
    assert result.exit_code == 1, result.output
    assert "Does not run on this mesh" in result.stdout
    assert re.search(r"! \w+: SRAM: \d+ bytes a PE, and 'mesh16' has 60", result.stdout)
    values = json.loads(invoke(model_path, "--target", tight_target, "--json").stdout)
    assert any("SRAM" in line for line in values["refusals"])


@pytest.mark.extended
def test_sizes_have_to_be_known(tmp_path):
    path = tmp_path / "mlp.onnx"
    onnx.save(mlp("N"), path)
    result = invoke(path, "--target", "mesh16")
    assert result.exit_code == 1
    assert "freeze it with --input-shape" in result.stdout
    succeed(path, "--target", "mesh16", "--input-shape", "x=8,6")


def test_another_kind_of_target_is_refused(model_path):
    result = invoke(model_path, "--target", "avx2")
    assert result.exit_code == 2
    assert "target 'avx2' is not a mesh" in result.stderr


def test_a_missing_folder_of_records_is_refused(model_path, tmp_path):
    result = invoke(model_path, "--target", "mesh16", "--records", tmp_path / "none")
    assert result.exit_code == 2
    assert "no folder of records" in result.stderr


def test_the_page_may_not_be_the_model(model_path):
    result = invoke(model_path, "--target", "mesh16", "--html", model_path)
    assert result.exit_code == 2
    assert "would overwrite" in result.stderr
