"""Which token comes next: the best one, or one drawn from what the logits allow."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tvm_ext.errors import InputError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from logits. They are changed in the order of the fields.

    Attributes
    ----------
    repetition_penalty : float
        Logits of tokens that the prompt or the text has already are divided by it where they are
        positive and multiplied where not (Keskar et al., "CTRL", 2019). 1 changes nothing.
    temperature : float
        Logits are divided by it. 0 always takes the largest logit, and nothing is drawn.
    top_k : int
        Only the so many largest logits count; 0 is all of them.
    top_p : float
        Only the most probable tokens count whose probabilities together reach it (Holtzman et al.,
        "The Curious Case of Neural Text Degeneration", 2020); 1 is all of them.
    seed : int
        Seed of what is drawn. The same seed gives the same text.
    """

    repetition_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        limits = {
            "repetition_penalty": (self.repetition_penalty > 0, "more than 0"),
            "temperature": (self.temperature >= 0, "0 or more"),
            "top_k": (self.top_k >= 0, "0 or more"),
            "top_p": (0 < self.top_p <= 1, "more than 0 and at most 1"),
            "seed": (self.seed >= 0, "0 or more"),
        }
        for name, (is_allowed, expected) in limits.items():
            if not is_allowed:
                raise InputError(
                    f"{name} is {getattr(self, name)}; expected {expected}: give such a number"
                )
        drawn = {"top_k": self.top_k > 0, "top_p": self.top_p < 1}
        unused = [name for name, is_given in drawn.items() if is_given]
        if unused and self.temperature == 0:
            raise InputError(
                f"{' and '.join(unused)} given with temperature 0, which always takes the most "
                "probable token; expected a temperature above 0: give temperature=1, or leave "
                f"{'it' if len(unused) == 1 else 'them'} out"
            )


class Sampler:
    """Chooses the tokens of one text.

    Parameters
    ----------
    sampling : Sampling
        How.
    prompt : sequence of int
        The tokens ahead of the text, which the repetition penalty counts as well.
    number : int
        Place of the text in its batch. Each draws numbers of its own, so that a text does not
        depend on those beside it.
    suppressed, suppressed_first : sequence of int
        Tokens that are never chosen, and those that are not chosen first.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int] = (),
        number: int = 0,
        suppressed: Sequence[int] = (),
        suppressed_first: Sequence[int] = (),
    ) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng([sampling.seed, number])
        self._seen = set(prompt)
        self._suppressed = list(suppressed)
        self._now = [*suppressed, *suppressed_first]

    def choose(self, logits: np.ndarray) -> int:
        """The next token, which later choices know of.

        Parameters
        ----------
        logits : array of shape (vocabulary,)
            Floats; not changed.

        Raises
        ------
        InputError
            They hold NaN, or nothing is finite: no token is the best.
        """
        if self._now:
            logits = logits.copy()
            logits[[token for token in self._now if token < logits.size]] = -np.inf
            self._now = self._suppressed
        # NaN counts as the largest: one pass finds the token and what is wrong.
        best = int(logits.argmax())
        largest = logits[best]
        if not np.isfinite(largest):
            raise InputError(
                f"the largest logit is {largest}; expected a finite number: see with 'tvm-ext "
                "check' whether the model gives the same elsewhere"
            )
        token = self._chosen(logits, best)
        self._seen.add(token)
        return token

    def _chosen(self, logits: np.ndarray, best: int) -> int:
        chosen = self._sampling
        if chosen.repetition_penalty != 1:
            logits = penalised(logits, self._seen, chosen.repetition_penalty)
            best = int(logits.argmax())
        if chosen.temperature == 0:
            return best
        places, probabilities = candidates(
            logits.astype(np.float64) / chosen.temperature, chosen.top_k, chosen.top_p
        )
        return int(self._random.choice(places, p=probabilities))


def penalised(logits: np.ndarray, seen: set[int], penalty: float) -> np.ndarray:
    """The logits as a copy in which those of the tokens ``seen`` are less likely."""
    places = np.fromiter((token for token in seen if token < logits.size), dtype=np.int64)
    result = logits.astype(np.float32)
    own = result[places]
    result[places] = np.where(own > 0, own / penalty, own * penalty)
    return result


def candidates(logits: np.ndarray, top_k: int, top_p: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that may be drawn, and their probabilities, which sum up to 1.

    Of equal logits at the edge of ``top_k`` the one with the smaller number is taken.
    """
    # Only then are all of them put in order, which takes longest.
    is_cut = top_p < 1 or 0 < top_k < logits.size
    places = np.argsort(-logits, kind="stable") if is_cut else np.arange(logits.size)
    if top_k > 0:
        places = places[:top_k]
    kept = logits[places]
    probabilities = np.exp(kept - kept.max())
    probabilities /= probabilities.sum()
    if top_p < 1:
        # The token with which the sum reaches it is the last.
        count = int(np.searchsorted(np.cumsum(probabilities), top_p)) + 1
        places, probabilities = places[:count], probabilities[:count]
        probabilities = probabilities / probabilities.sum()
    return places, probabilities
