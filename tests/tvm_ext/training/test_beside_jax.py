"""Gradients and loss curves of whole blocks beside those of JAX."""

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed")

import jax
from jax_models import adam_curve, cross_entropy
from training_models import BLOCKS, batch_for, compile_training

from tvm_ext.training import SGD, Adam

# Rounding of float32 over a few layers, as a share of the largest element.
_TOLERANCE = 2e-5
_STEPS = 200


# What takes half a minute to compile together; the others have the same operators alone.
LONG = pytest.mark.slow
LONG_CURVES = ("resnet", "transformer")
# The curve of the LSTM is a test of its gradients too.
QUICK = ("mlp", "transformer block", "separable block")


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [block if block in QUICK else pytest.param(block, marks=LONG) for block in BLOCKS]
)
def test_gradients_are_those_of_jax(block: str) -> None:
    model = BLOCKS[block]()
    batch = batch_for(model)
    # A step of length 1 moves each weight by its gradient.
    trainer = compile_training(model, "cross_entropy", SGD(lr=1.0))
    before = {name: trainer.weights[name] for name in trainer.trained}
    loss = trainer.step(batch)
    after = trainer.weights
    expected, gradients = jax.jit(jax.value_and_grad(cross_entropy(model)))(before, batch)
    assert loss == pytest.approx(float(expected), abs=1e-5)
    assert set(gradients) == set(before)
    for name, gradient in gradients.items():
        # What subtracting from the weight rounds away is no error of the gradient.
        rounded = 2e-7 * np.max(np.abs(before[name])) + 1e-7
        limit = _TOLERANCE * float(np.max(np.abs(gradient))) + rounded
        np.testing.assert_allclose(before[name] - after[name], gradient, rtol=0, atol=limit)


@pytest.mark.extended
@pytest.mark.parametrize(
    "block", ["mlp", "lstm", *(pytest.param(f"{one} block", marks=LONG) for one in LONG_CURVES)]
)
def test_curve_is_that_of_jax(block: str) -> None:
    model = BLOCKS[block]()
    batches = [batch_for(model, seed) for seed in range(8)] * (_STEPS // 8)
    trainer = compile_training(model, "cross_entropy", Adam(lr=1e-3))
    weights = {name: trainer.weights[name] for name in trainer.trained}
    losses = trainer.fit(batches, progress=False)
    assert losses[-1] < losses[0]
    expected = adam_curve(model, weights, batches, 1e-3)
    np.testing.assert_allclose(losses, expected, rtol=0, atol=1e-4)
