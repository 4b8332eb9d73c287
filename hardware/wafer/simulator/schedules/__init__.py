"""Programs of the usual communication patterns, one file a family."""
