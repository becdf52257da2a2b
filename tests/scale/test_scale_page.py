"""docs/scale.md: its figures are those of the committed results, its Spark examples run."""

import re

import pytest
from benchmarks.tables import SCALE_PAGE, with_scale_tables

EXAMPLE = re.compile(r"^```py\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_page_shows_the_committed_results():
    assert SCALE_PAGE.read_text() == with_scale_tables(SCALE_PAGE.read_text())


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_examples_run_in_order(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    blocks = EXAMPLE.findall(SCALE_PAGE.read_text())
    assert len(blocks) == 4
    for number, block in enumerate(blocks):
        # The session of the tests works elsewhere: give it whole paths.
        text = re.sub(r'(parquet|start|load)\("([a-z]+)"\)', rf'\1("{tmp_path}/\2")', block)
        text = re.sub(r'("checkpointLocation", )"([a-z]+)"', rf'\1"{tmp_path}/\2"', text)
        text = text.replace('(spark, "checkpoint")', f'(spark, "{tmp_path}/checkpoint")')
        exec(compile(text, f"scale.md, Spark block {number}", "exec"), names)
