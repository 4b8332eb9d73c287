"""Which schedule of a kernel its trials speak for.

A time from the search alone is one draw among many, and the least of many is partly luck. So the
best are measured again beside the default, and what does not beat it there is dropped. Before that
has happened, a candidate has to be ahead of the default by more than the noise.

Times of a model stand for a kernel on a target where nothing was measured, and nowhere else: the
two are never compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tvm_ext.tuning.trial import FAILURES, Trial

# A smaller gain is noise, however small the spread.
LEAST_GAIN = 0.01


@dataclass(frozen=True)
class Standing:
    """One candidate of a kernel as its trials leave it.

    Attributes
    ----------
    trial : Trial
        Its first trial.
    seconds : float
        Of one call; from the last confirmation if there was one.
    spread : float
        Relative spread of the same.
    is_confirmed : bool
        Whether it was measured again beside the default.
    """

    trial: Trial
    seconds: float
    spread: float
    is_confirmed: bool

    @property
    def is_modelled(self) -> bool:
        """Whether the time is a model's answer."""
        return self.trial.is_modelled


def timed(trials: Iterable[Trial]) -> list[Trial]:
    """Of one kernel on one target, the trials whose times count: all of one kind.

    The measured ones; those of a model where nothing was measured.
    """
    known = list(trials)
    measured = [trial for trial in known if trial.is_measured]
    return measured or [trial for trial in known if trial.is_modelled]


def standings(trials: Iterable[Trial]) -> dict[str, Standing]:
    """By candidate, the trials of one kernel on one target whose times count.

    A candidate that was of no use in any trial, even after a good one, is out: threads that race
    give right numbers now and then.
    """
    found: dict[str, Standing] = {}
    known_trials = list(trials)
    bad = {one.candidate for one in known_trials if one.status in FAILURES}
    for trial in timed(known_trials):
        if trial.candidate in bad or trial.seconds is None:
            continue
        known = found.get(trial.candidate)
        confirms = trial.purpose == "confirm"
        if known is None:
            found[trial.candidate] = Standing(trial, trial.seconds, trial.spread, confirms)
        elif confirms:
            found[trial.candidate] = Standing(known.trial, trial.seconds, trial.spread, True)
    return found


def default_of(found: dict[str, Standing]) -> Standing | None:
    """The default schedule's standing; of the newest, if it has changed."""
    defaults = [one for one in found.values() if one.trial.is_default]
    return defaults[-1] if defaults else None


def kept(found: dict[str, Standing]) -> list[Standing]:
    """What belongs into a database, the best first: those that beat the default, and the default.

    A candidate that looks better than the best confirmed one, and was not confirmed itself, is
    left out: it had its chance.
    """
    default = default_of(found)
    others = [one for one in found.values() if default is None or one is not default]
    if default is not None:
        others = [one for one in others if beats(one, default)]
    confirmed = [one.seconds for one in others if one.is_confirmed]
    if default is not None and any(one.is_confirmed for one in found.values()):
        confirmed.append(default.seconds)
    if confirmed:
        least = min(confirmed)
        others = [one for one in others if one.is_confirmed or one.seconds > least]
    chosen = sorted(others, key=lambda one: one.seconds)
    return chosen if default is None else [*chosen, default]


def best(found: dict[str, Standing]) -> Standing | None:
    """The schedule to use."""
    return next(iter(kept(found)), None)


def beats(one: Standing, default: Standing) -> bool:
    """Whether it is faster than the default by more than the noise of its measurement."""
    noise = LEAST_GAIN if one.is_confirmed else max(LEAST_GAIN, one.spread)
    return one.seconds < default.seconds * (1 - noise)
