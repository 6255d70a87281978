"""Runs exported heads in a process of their own, in which none of this repository's packages, Keras or Addons can be imported."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import tensorflow as tf  # looks for Keras itself

STRANGERS = {"multihead", "models", "examples", "tests", "keras", "tf_keras", "tensorflow_addons"}

class NotHere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in STRANGERS:
            raise ImportError(f"{name} is not here")

for name in [name for name in sys.modules if name.split(".")[0] in STRANGERS]:
    del sys.modules[name]
sys.meta_path.insert(0, NotHere())

def plain(tensor):
    return decoded(tensor.numpy().tolist()) if tensor.dtype == tf.string else tensor.numpy().tolist()

def decoded(values):
    return values.decode() if isinstance(values, bytes) else [decoded(value) for value in values]

answers = []
for folder, inputs in json.load(sys.stdin):
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    specs = signature.structured_input_signature[1]
    given = {name: tf.constant(values, specs[name].dtype) for name, values in inputs.items()}
    answers.append({name: plain(tensor) for name, tensor in signature(**given).items()})
print(json.dumps([answers, sorted(STRANGERS & set(sys.modules))]))
"""


def answers(asked, folder):
    """What exported heads answer.

    Args:
        asked: Pairs of an export's folder and its inputs by name, as lists.
        folder: An empty folder to run in.

    Returns:
        A dict of lists for each pair.
    """
    asked = json.dumps([(str(path), inputs) for path, inputs in asked])
    done = subprocess.run(
        [sys.executable, "-I", "-c", PROGRAM], input=asked, cwd=folder, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    given, imported = json.loads(done.stdout.splitlines()[-1])
    assert imported == []
    return given
