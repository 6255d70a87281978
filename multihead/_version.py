"""The version of the package, in a file that a build reads without importing TensorFlow."""

__version__ = "0.1.0"
