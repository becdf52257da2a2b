"""Triton decides when it is imported whether to interpret: a script that does takes a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path


def interpreted(script, *words):
    """What a script of this folder prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, script, *words],
        cwd=Path(__file__).parent,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
