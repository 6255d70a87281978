"""Example programs, each of which answers one question: `python -m examples` lists them."""

import os

# Set before any of them imports TensorFlow, which would otherwise log details about the machine.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
