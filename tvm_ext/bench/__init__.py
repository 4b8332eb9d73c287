"""How fast a model answers, beside other programs on the same inputs, measured in turns."""

from tvm_ext.bench.latency import Latencies, measure_in_turns
from tvm_ext.bench.programs import PROGRAMS, Program, ours, program

__all__ = ["PROGRAMS", "Latencies", "Program", "measure_in_turns", "ours", "program"]
