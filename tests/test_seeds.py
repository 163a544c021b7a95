"""The table of several trainings, from planted ones: by seed, over seeds, and untrained beside."""

import csv

import numpy as np
import pytest

from training import seeds

COLUMNS = ("position0_share", "top1_share", "persistence_top1")


def planted(folder, objective, first, last):
    """Two probes; attention differs between layers, and running text is not to be counted."""
    folder.mkdir(exist_ok=True)
    with (folder / f"{objective}-curve.csv").open("w") as file:
        lines = csv.writer(file)
        lines.writerow(["step", "answer_accuracy", "natural_loss"])
        lines.writerows([[0, first, 9], [500, last, 4]])
    with (folder / f"{objective}-emergence.csv").open("w") as file:
        lines = csv.writer(file)
        lines.writerow(["step", "domain", "layer", *COLUMNS])
        for step, value in ((0, first), (500, last)):
            for layer, change in ((0, -0.1), (1, 0.1)):
                lines.writerow([step, "world", layer, *[value + change] * 3])
                lines.writerow([step, "natural", layer, 7, 7, 7])


def test_differences_are_taken_by_seed_and_untrained_ones_stand_beside(tmp_path):
    folders = [tmp_path / str(seed) for seed in range(3)]
    for folder, shift in zip(folders, (0.0, 0.02, 0.04), strict=True):
        planted(folder, "mdm", 0.2, 0.3 + shift)
        planted(folder, "arm", 0.2 + shift / 2, 0.6)
    states = (seeds.UNTRAINED, seeds.TRAINED)
    made = {
        state: {o: [seeds._probe(f, o, state) for f in folders] for o in ("mdm", "arm")}
        for state in states
    }
    pairs = seeds._pairs(made[seeds.TRAINED], "position0_share")
    assert np.allclose(pairs, [(0.3, 0.6), (0.32, 0.6), (0.34, 0.6)])
    value, low, high = seeds.over_seeds([m - a for m, a in pairs])
    half = 4.3027 * 0.02 / np.sqrt(3)  # Student's with two degrees of freedom
    assert (value, low, high) == pytest.approx((-0.28, -0.28 - half, -0.28 + half), abs=1e-4)
    (line,) = [x for x in seeds.page({"claims": {}, **made}).splitlines() if "position 0" in x]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[1:4] == ["30.0, 60.0 %", "32.0, 60.0 %", "34.0, 60.0 %"]
    assert cells[4].startswith("−28.0 points [−33.0, −23.0]")
    assert cells[5].startswith("−1.00 points")
