"""Which token is chosen from logits."""

import numpy as np
import pytest

from tvm_ext.errors import InputError
from tvm_ext.generation.sampling import Sampler, Sampling, candidates, penalised

LOGITS = np.array([1.0, 3.0, -2.0, 2.5, 0.0], np.float32)


def drawn(count: int = 4000, **options: float) -> dict[int, float]:
    """How often each token is drawn."""
    sampler = Sampler(Sampling(temperature=1.0, **options))
    tokens, counts = np.unique([sampler.choose(LOGITS) for _ in range(count)], return_counts=True)
    return dict(zip(tokens.tolist(), (counts / count).tolist(), strict=True))


def test_the_best_token_is_taken_without_a_temperature():
    assert [Sampler(Sampling()).choose(LOGITS) for _ in range(3)] == [1, 1, 1]


def test_tokens_are_drawn_as_often_as_they_are_probable():
    wanted = np.exp(LOGITS) / np.exp(LOGITS).sum()
    found = drawn()
    assert all(abs(found.get(n, 0.0) - p) < 0.03 for n, p in enumerate(wanted))


def test_top_k_keeps_the_best():
    assert set(drawn(top_k=2)) == {1, 3}
    assert set(drawn(top_k=99)) >= {0, 1, 3}


def test_top_p_ends_with_the_token_that_reaches_it():
    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert set(drawn(top_p=float(probabilities[1]) - 1e-6)) == {1}
    assert set(drawn(top_p=float(probabilities[1]) + 1e-6)) == {1, 3}


def test_candidates_sum_to_one_and_ties_go_to_the_smaller_number():
    places, probabilities = candidates(np.zeros(5), top_k=3, top_p=1.0)
    assert places.tolist() == [0, 1, 2]
    assert probabilities.sum() == pytest.approx(1.0)


def test_a_high_temperature_makes_all_alike_and_a_low_one_takes_the_best():
    def shares(temperature: float) -> np.ndarray:
        sampler = Sampler(Sampling(temperature=temperature))
        return np.bincount([sampler.choose(LOGITS) for _ in range(2000)], minlength=5) / 2000

    assert shares(1000.0) == pytest.approx(np.full(5, 0.2), abs=0.05)
    assert shares(0.01)[1] == 1.0


def test_the_penalty_works_on_both_signs_and_leaves_the_logits():
    before = LOGITS.copy()
    found = penalised(LOGITS, {1, 2, 99}, 2.0)
    assert found.tolist() == [1.0, 1.5, -4.0, 2.5, 0.0]
    assert LOGITS.tolist() == before.tolist()


def test_a_penalty_counts_the_prompt_and_what_was_chosen():
    sampler = Sampler(Sampling(repetition_penalty=4.0), prompt=[1])
    assert [sampler.choose(LOGITS) for _ in range(3)] == [3, 0, 1]


def test_seeds_repeat_and_texts_of_a_batch_differ():
    def tokens(seed: int, number: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), number=number)
        return [sampler.choose(LOGITS) for _ in range(30)]

    assert tokens(5, 0) == tokens(5, 0)
    assert tokens(5, 0) != tokens(6, 0)
    assert tokens(5, 0) != tokens(5, 1)


def test_suppressed_tokens_are_not_chosen():
    sampler = Sampler(Sampling(), suppressed=[1, 99], suppressed_first=[3])
    assert [sampler.choose(LOGITS) for _ in range(2)] == [0, 3]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_without_a_best_one_are_refused(bad):
    with pytest.raises(InputError, match="finite"):
        Sampler(Sampling()).choose(np.array([0.0, bad], np.float32))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"top_k": 5}, "top_k given with temperature 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
    ],
)
def test_options_out_of_range_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        Sampling(**options)
