"""What a simulation counts."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SimulationResult:
    """Times and counts of one program.

    Attributes
    ----------
    task_ends : np.ndarray
        When each task of the program was over; all that can start does so in cycle 0. Shape
        (tasks,), int64.
    colours : int
        The most colours that one router has routes of.
    link_wavelets : np.ndarray
        Wavelets that left each router, shape (rows, columns, 4) in the order north, east, south,
        west; int64.
    busy_cycles : np.ndarray
        Words that the tasks of each PE went through, one a cycle; tasks at the same time count
        each. Shape (rows, columns), int64.
    sent_words, received_words : np.ndarray
        Wavelets over the ramp of each PE, to and from its router; shape (rows, columns), int64.
    """

    task_ends: np.ndarray
    colours: int
    link_wavelets: np.ndarray
    busy_cycles: np.ndarray
    sent_words: np.ndarray
    received_words: np.ndarray

    @property
    def cycles(self) -> int:
        """When the last task was over; 0 for a program without tasks."""
        return int(self.task_ends.max(initial=0))
