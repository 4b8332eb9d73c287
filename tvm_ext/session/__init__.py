"""Runs of a model that carry a state: keys and values of earlier tokens, or of a stream."""

from tvm_ext.session.session import Session, SessionStatistics
from tvm_ext.session.state_pairs import StatePair, find_state

__all__ = ["Session", "SessionStatistics", "StatePair", "find_state"]
