"""Small made files in the layout of each data set."""

import io
import tarfile
import wave
import zipfile
from pathlib import Path

import numpy as np

from onlinecde.data.sets.physionet_2019 import CHANNELS, COLUMNS


def made_ts(name: str, cases: int, seed: int, *, classes: int = 0, channels: int = 3) -> str:
    random = np.random.default_rng(seed)
    label = (
        f"@classlabel true {' '.join(str(c + 1) for c in range(classes))}"
        if classes
        else "@targetlabel true"
    )
    lines = [
        "# made for a test",
        f"@problemName {name}",
        "@timestamps false",
        "@missing true",
        "@univariate false",
        f"@dimension {channels}",
        f"@equalLength {'false' if classes else 'true'}",
        *([] if classes else ["@seriesLength 24"]),
        label,
        "@data",
    ]
    for case in range(cases):
        rows = int(random.integers(4, 9)) if classes else 24
        table = random.normal(size=(channels, rows)).round(4)
        cells = [[str(x) if random.random() > 0.1 else "?" for x in row] for row in table]
        target = str(case % classes + 1) if classes else f"{random.uniform(1, 99):.2f}"
        lines.append(":".join([*(",".join(row) for row in cells), target]))
    return "\n".join(lines) + "\n"


def made_psv(seed: int, rows: int, septic: bool) -> str:
    random = np.random.default_rng(seed)
    lines = ["|".join(COLUMNS)]
    for hour in range(1, rows + 1):
        values = [
            f"{random.normal(80, 5):.2f}" if random.random() < 0.4 else "NaN" for _ in CHANNELS
        ]
        unit = ["NaN", "NaN"] if seed % 2 else ["0", "1"]
        label = int(septic and hour > rows // 2)
        lines.append("|".join([*values, "61.5", "1", *unit, "-0.03", str(hour), str(label)]))
    return "\n".join(lines) + "\n"


def made_record(record: int) -> str:
    return (
        f"Time,Parameter,Value\n00:00,RecordID,{record}\n00:00,Age,{50 + record % 30}\n"
        "00:00,Gender,0\n00:00,Height,-1\n00:00,ICUType,3\n00:00,Weight,80\n"
        "00:07,HR,73\n00:07,MAP,90\n00:07,MAP,92\n01:30,Temp,37.5\n01:30,Weight,81\n47:59,HR,77\n"
    )


def made_wav(samples: int, seed: int, rate: int = 16000) -> bytes:
    random = np.random.default_rng(seed)
    tone = np.sin(np.arange(samples) * (0.05 + 0.02 * seed)) * 9000 + random.normal(0, 300, samples)
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(tone.astype("<i2").tobytes())
    return out.getvalue()


def write_packed(files: dict[str, bytes], path: Path, form: str) -> Path:
    if form == "folder":
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    elif form == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in reversed(files.items()):
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz" if form == "tar.gz" else "w") as archive:
            for name, content in reversed(files.items()):
                entry = tarfile.TarInfo(f"./{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path
