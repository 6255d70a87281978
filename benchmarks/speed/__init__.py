"""How long things take: a program for each question, run by `python -m benchmarks NAME`."""
