"""Which candidates of a kernel are tried next."""
