"""The parts of which the trainer consists."""
