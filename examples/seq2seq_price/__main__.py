"""Runs the example: `python -m examples.seq2seq_price`."""

import sys

from examples.seq2seq_price.command import main

sys.exit(main())
