"""Programs in copies of a process that has imported TensorFlow."""

from __future__ import annotations

import os
import sys
import traceback


def forked(action, log):
    """Starts a copy of this process that runs an action and ends, with exit status 1 after an error; its number.

    Args:
        action: What to run.
        log: The file for what it prints.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        action()
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
