"""What models and communication patterns cost on a wafer-scale mesh."""
