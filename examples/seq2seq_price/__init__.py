"""Trains a sequence decoder and a price classifier on one encoder: `python -m examples.seq2seq_price --help`."""
