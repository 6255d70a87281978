"""Runs the example: `python -m examples.ranking`."""

import sys

from examples.ranking.command import main

sys.exit(main())
