"""Runs side by side give what single runs give, in the order of their futures."""

import numpy as np
import pytest
from small_models import mlp, mlp_reference, rand
from unoptimised import HOST

import tvm_ext


@pytest.fixture(scope="module")
def compiled() -> tvm_ext.CompiledModel:
    return tvm_ext.compile(mlp(), HOST, threads=2, opt_level="O0")


@pytest.mark.parametrize("streams", [None, 1, 3])
def test_each_future_has_the_results_of_its_inputs(compiled, streams) -> None:
    feeds = [rand(1 + n % 3, 6) for n in range(40)]
    with compiled.runner(streams) as runner:
        futures = [runner.submit({"x": x}) for x in feeds]
        for x, future in zip(feeds, futures, strict=True):
            for name, wanted in mlp_reference(x).items():
                np.testing.assert_allclose(future.result()[name], wanted, rtol=1e-4, atol=1e-5)


def test_streams_share_the_threads(compiled) -> None:
    kept = compiled._threads
    try:
        compiled._threads = 8
        for streams, threads in ((None, 1), (1, 8), (3, 2), (20, 1)):
            with compiled.runner(streams) as runner:
                assert (runner.streams, runner.threads) == (streams or 8, threads)
    finally:
        compiled._threads = kept


def test_a_wrong_input_is_raised_by_its_own_future(compiled) -> None:
    with compiled.runner(2) as runner:
        wrong, right = runner.submit({"x": rand(2, 5)}), runner.submit({"x": rand(2, 6)})
        with pytest.raises(tvm_ext.TvmExtError, match="x"):
            wrong.result()
        assert right.result()["z"].shape == (2, 3)


def test_refusals(compiled) -> None:
    with pytest.raises(tvm_ext.TvmExtError, match="0 streams were asked for; expected 1 or more"):
        compiled.runner(0)
    runner = compiled.runner(1)
    runner.close()
    with pytest.raises(tvm_ext.TvmExtError, match="the runner is closed"):
        runner.submit({"x": rand(2, 6)})
