"""The stages between the graph passes and a program that runs."""
