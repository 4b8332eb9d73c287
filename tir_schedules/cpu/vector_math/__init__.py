"""Elementary functions as expressions that run in vector registers, and what puts them in place."""
