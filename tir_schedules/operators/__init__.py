"""Operators that reach the loops as one annotated kernel: what each computes, for any machine."""
