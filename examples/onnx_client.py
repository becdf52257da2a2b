"""Live predictions by numpy and onnxruntime alone: python onnx_client.py FOLDER < rows.csv

FOLDER is what `onlinecde export RUN --onnx FOLDER` wrote. The CSV has columns stream, time, any of the model's channels
(empty: not observed) and of its static features, which are read from a stream's first line; rows in order of time.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


class Model:
    """init, observe, predict; a state is a list of arrays, one line a stream."""

    def __init__(self, folder):
        self.about = json.loads((Path(folder) / "model.json").read_text())
        oldest, mine = self.about["onnxruntime"]["at_least"], ort.__version__
        if [int(n) for n in mine.split(".")[:2]] < [int(n) for n in oldest.split(".")[:2]]:
            sys.exit(f"onnxruntime {mine} is too old: install {oldest} or newer.")
        self.run = {}
        for name, graph in self.about["graphs"].items():
            self.run[name] = ort.InferenceSession(str(Path(folder) / graph["file"]))

    def call(self, graph, *arrays):
        inputs = self.about["graphs"][graph]["inputs"]
        named = {i["name"]: np.asarray(a, i["dtype"]) for i, a in zip(inputs, arrays, strict=True)}
        return self.run[graph].run(None, named)

    def init(self, facts):
        """The state of one stream; facts: static features by name, what is empty is missing."""
        numbers = []
        for column in self.about["static"]:
            value = facts.get(column["name"]) or ""
            if column["kind"] == "category":
                numbers += [float(value == category) for category in column["categories"]]
            else:
                numbers.append(float(value) if value else column["fill"])
                numbers += [float(not value)] if column["missing_indicator"] else []
        return self.call("init", [numbers] if self.about["static"] else [0.0])

    def observe(self, state, t, row):
        x = [float(row.get(name) or "nan") for name in self.about["channels"]]
        return self.call("observe", *state, [t], [x])

    def predict(self, state, t):
        return self.call("predict", *state, [t])[1][0]


if __name__ == "__main__":
    model, states = Model(sys.argv[1]), {}
    for row in csv.DictReader(sys.stdin):
        stream, t = row["stream"], float(row["time"])
        state = states.get(stream) or model.init(row)
        states[stream] = model.observe(state, t, row)
        print(stream, t, *model.predict(states[stream], t))
