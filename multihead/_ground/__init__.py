"""What everything stands on: Keras 2 and 3 as one, gradients, replicas, random numbers, files, errors."""
