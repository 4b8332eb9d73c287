"""What kernels are, for any machine: accesses, loop nests, rows, sliding windows, contractions."""
