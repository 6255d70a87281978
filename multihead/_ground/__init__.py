"""What everything stands on: where the stacks differ, and helpers on tensors.

- The stacks differ in `keras`, `calls`, `layers` and `optimizers`; the rest of the package does not ask for the version.
- `compatibility` explains at import why the installed TensorFlow or Keras cannot be used.
- Helpers on tensors are `tensors`, `replicas` and `random`.
- `types` names the kinds of values; `validation` holds the checks of arguments and the form of all messages.
"""
