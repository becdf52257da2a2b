"""A Spark job in a process of its own, to be killed: `python killable_spark.py folder`."""

import sys
from pathlib import Path

from spark_jobs import job, new_session, run

if __name__ == "__main__":
    home = Path(sys.argv[1])
    run(job(new_session(home / "spark", cores=1), home), home / "out", home / "checkpoint")
