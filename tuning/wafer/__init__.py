"""What a scheduled kernel costs on a wafer-scale mesh, and measurers that ask the model."""
