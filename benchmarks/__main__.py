"""All benchmarks, one after the other: `python -m benchmarks [--results DIR]`."""

import argparse
import subprocess
import sys
from pathlib import Path

ALL = ("paths", "solve", "live", "onnx", "gru_d", "streaming", "serving")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, help="write a results file for each to this folder")
    asked = parser.parse_args()
    missed = []
    for name in ALL:
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        if asked.results:
            command += ["--out", str(asked.results / f"{name}.json")]
        if subprocess.run(command, check=False).returncode:
            missed.append(name)
    if missed:
        sys.exit(f"not every bar was reached in: {', '.join(missed)}")


if __name__ == "__main__":
    main()
