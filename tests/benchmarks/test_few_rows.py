"""The products that are measured give the numbers of ONNX Runtime, however they are stored."""

import few_rows
import numpy as np
import onnx
import pytest
from few_rows import STORAGES, Peaks, ProductModel
from unoptimised import HOST

import tvm_ext
from tvm_ext.check.reference import run_reference

# ONNX Runtime rounds activations to 8 bits where the weights alone have 8. Of float16, which sums
# are rounded is not prescribed.
LARGEST = {"qdq8": 0.03, "float16": 3e-3}

# Sizes around those of tiles and blocks: odd columns, and a depth that is no multiple of a block.
ROWS = (*range(1, 18), 33)
DEPTH, COLUMNS = 200, 71


def by_runtime(model: ProductModel, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(run_reference(model.proto, inputs).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", STORAGES)
def test_open_rows(name: str) -> None:
    model = ProductModel(STORAGES[name], DEPTH, COLUMNS, "rows", 1)
    onnx.checker.check_model(model.proto)
    compiled = tvm_ext.compile(model.proto, HOST.with_cores(1))
    for rows in ROWS:
        inputs = model.inputs(rows)
        (found,), (wanted,) = compiled.run(inputs).values(), by_runtime(model, inputs)
        assert found.shape == wanted.shape == (rows, COLUMNS)
        largest = LARGEST.get(name, 1e-5) * np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=largest, err_msg=f"{rows} rows")


def test_bytes_of_weights() -> None:
    assert STORAGES["float32"].nbytes(64, 10) == 4 * 640
    assert STORAGES["int4-32"].nbytes(64, 10) == 320 + 4 * 2 * 10
    # A block that is not whole has a scale as well.
    assert STORAGES["int8-32"].nbytes(70, 1) == 70 + 4 * 3


def test_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(few_rows, "_TURNS", 2)
    model = ProductModel(STORAGES["int4-32"], 64, 32, "rows", 2)
    few_rows._measure(model, [1, 3], 1, Peaks(gbs=1.0, gflops=1.0))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1:4] for line in lines] == [
        [" int4-32 ", " 64x32 ", f" {rows} "] for rows in (1, 3)
    ]
