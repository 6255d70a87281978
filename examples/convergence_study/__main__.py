"""Runs the study: `python -m examples.convergence_study`."""

import sys

from examples.convergence_study.command import main

sys.exit(main())
