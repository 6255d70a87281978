"""Measurements: `speed`, what a step costs, and `research`, what sharing an encoder costs or gives."""
