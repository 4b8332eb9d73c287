"""Numbers that follow from the sizes of tensors: what they are, and what operators make of them.

A model computes its shapes by operators on small tensors: Shape, Gather, Div, Concat. Here these
are calculated with while the model is imported, as integers where the sizes are known and as
expressions of symbolic sizes elsewhere. An operator that has no rule, or whose result no expression
can say, is computed in the run like any other.

Tensors of any size whose elements follow from where they stand, as positions and causal masks do,
are one expression of the place in the same way.
"""

from tvm_ext.onnx_frontend.sizes.generated_rules import generated
from tvm_ext.onnx_frontend.sizes.generated_tensors import GeneratedTensor
from tvm_ext.onnx_frontend.sizes.size_rules import computed_from_sizes
from tvm_ext.onnx_frontend.sizes.size_values import SizeValues

__all__ = ["GeneratedTensor", "SizeValues", "computed_from_sizes", "generated"]
