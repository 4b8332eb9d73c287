"""The pass ``AttentionFusion``. It asks the template for a kernel, and so is above both folders."""
