"""What `fit`, `evaluate`, `predict` and `diagnose` are given, brought to one form that both Keras versions take."""
