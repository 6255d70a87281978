"""The data of `fit`, `evaluate`, `predict` and `diagnose` in one form that both versions of Keras take."""
