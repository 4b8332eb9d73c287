"""What benchmarks/cuda.py measures: single kernels beside PyTorch's, whole models beside others."""
