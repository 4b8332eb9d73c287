"""Names that passes, templates and machines had before: what users wrote with them is still read.

Everything that reads names looks them up here: pipelines, options of passes, target files, tuning
records and saved reports. What is written has the new names.
"""

PASSES = {
    "DelayReshapes": "SinkReshapes",
    "InheritOrigins": "PropagateSpans",
    "LayerNormFusion": "NormalizationFusion",
    "PadOutputColumns": "PadOutputWidth",
    "ProductsInOwnType": "AccumulateInFloat32",
    "SoftmaxOfNarrow": "FuseCastIntoSoftmax",
}

TEMPLATES = {
    "box suppression": "nms",
    "matrix vector": "gemv",
    "mesh blockwise": "wafer blockwise",
    "mesh convolution": "wafer convolution",
    "mesh elementwise": "wafer elementwise",
    "mesh matmul": "wafer matmul",
    "mesh matrix vector": "wafer gemv",
    "mesh reduction": "wafer reduction",
    "mesh stencil": "wafer stencil",
    "mesh transpose": "wafer transpose",
    "row stitch": "softmax and norm",
    "warp group attention": "warpgroup attention",
    "warp group contraction": "warpgroup contraction",
}

# Of what a report says of the graph.
GRAPH_FIELDS = {"divides_by_data": "may_divide_by_zero"}

MACHINE_KINDS = {"mesh": "wafer"}


def current_schedule(described: str) -> str:
    """A template with its decisions in brackets, as reports show it, under its present name."""
    template, bracket, decisions = described.partition(" (")
    return TEMPLATES.get(template, template) + bracket + decisions
