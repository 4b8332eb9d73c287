"""CPUs: instruction-set features, this machine's own, and threads of its cores."""
