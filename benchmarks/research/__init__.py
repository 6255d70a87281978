"""What sharing an encoder costs or gives: experiments on `multihead.compare`, run by `python -m benchmarks.research`."""
