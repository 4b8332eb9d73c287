"""Windows that slide: depthwise convolution and pooling along strips of results in registers."""
