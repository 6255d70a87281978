"""Programs that each answer one question: `python -m examples` lists them."""

import os

# Before any of them imports TensorFlow, which would otherwise speak of what it finds on the machine.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
