"""A scoring in a process that can be killed: `python killable_scoring.py FOLDER`.

Imports once, then forks a child for each line on its input: the child scores FOLDER's tables into `scores.csv` there,
and tells each stage it comes to.
"""

import os
import sys
from pathlib import Path

import torch
from made_ward import LONG, made_cde

from onlinecde.scoring.files import Display, predict_file
from onlinecde.scoring.output import OutputFile
from onlinecde.scoring.request import Request

MEMORY = 1 << 18
"""Little enough for many buckets"""


def tell(line):
    os.write(1, f"{line}\n".encode())


class Teller(Display):
    def stage(self, name, share):
        tell(f"stage {name} {share:.3f}")

    def note(self, text):
        tell(f"note {text}")


def score(folder, out="scores.csv", memory=MEMORY, display=None):
    """Score the tables of a folder."""
    tables = {"static": folder / "stays.csv", **LONG}
    request = Request.build(made_cde(), folder / "vitals.csv", at="every=1h", **tables)
    return predict_file(request, OutputFile.named(folder / out), memory=memory, display=display)


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    tell("ready")
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                tell(f"child {os.getpid()}")
                done = score(folder, display=Teller())
                tell(f"done {done.lines} {done.streams}")
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        tell(f"ended {os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}")


if __name__ == "__main__":
    main()
