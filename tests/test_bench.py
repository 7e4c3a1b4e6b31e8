"""The bench runs to its end with every contestant and reports every figure; what the figures are is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.contestants import SPOKEN

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("generation", SPOKEN)
def test_a_tiny_run_reports_every_figure(tmp_path: Path, generation: str) -> None:
    figures = tmp_path / "figures.json"
    command = [
        sys.executable,
        "-m",
        "bench",
        "--generation",
        generation,
        "--rounds",
        "1",
        "--scale",
        "0.01",
        "--events",
        "0.001",
    ]
    run = subprocess.run(
        [*command, "--dir", str(tmp_path), "--json", str(figures)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    outcome = json.loads(figures.read_text())
    for measure, by_contestant in outcome["rounds"].items():
        assert measure in run.stdout
        assert list(by_contestant) == ["sdk", "memory", "sqlite"]
        assert all(numbers for rounds in by_contestant.values() for numbers in rounds)
    if generation == "streamable-http":
        assert outcome["memory"]["sqlite"]["events"] == 1000
