# SPDX-License-Identifier: MIT
"""train_gpt beside PyTorch in float64: the losses of 20 steps from the same weights and batches. Run by pytest."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("ATTN_TEST_EXAMPLES", ROOT / "build" / "examples")) / "example_train_gpt"
sys.path.append(str(ROOT / "examples" / "train_gpt"))
import torch_gpt  # noqa: E402

torch.set_num_threads(1)

STEPS, UNIT = 20, 2.0 ** -24
OPTIONS = SimpleNamespace(batch=4, seq=32, width=48, heads=3, layers=2, text=[ROOT / "examples" / "README.md"])


def run(*words):
    sizes = [f"{name}={getattr(OPTIONS, name)}" for name in ("batch", "seq", "width", "heads", "layers")]
    command = [str(word) for word in (PROGRAM, *OPTIONS.text, *sizes, "threads=1", "sample=0", *words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def misses(trainer, text, losses):
    """Difference over limit of each step.

    The loss of given weights: as many roundings of its terms as sums have levels, 16 in each of 8 sums a layer. The weights:
    a gradient may be wrong by 16 units of the largest of its array, which is the limit of the tests of layers. AdamW moves a
    weight by rate m / sqrt(v), so an error e of its gradient moves it by rate e / sqrt(v), and the loss by g times that.
    Since |g| / sqrt(v) is about 1, each step adds rate times the errors of all gradients; twice that for m, which keeps
    them.
    """
    drift, found = 0.0, []
    for step, ours in enumerate(losses):
        theirs = float(trainer.step(text.batch(step)).detach())
        rounding = 16 * 8 * OPTIONS.layers * UNIT * theirs + 0.5e-6  # the program prints 6 digits
        found.append(abs(theirs - ours) / (rounding + drift))
        errors = sum(16 * UNIT * float(p.grad.abs().max()) * p.numel() for p in trainer.model.parameters())
        drift += 2 * torch_gpt.rate_of(step + 1) * errors
    return found


@pytest.fixture(scope="module")
def curve(tmp_path_factory):
    """The weights at the beginning, and the losses that the program had from there."""
    path = tmp_path_factory.mktemp("gpt") / "begin.bin"
    run("steps=0", f"save={path}")
    losses = re.findall(r"loss (\S+)", run(f"steps={STEPS}", "every=1"))
    return torch_gpt.read_weights(path), [float(loss) for loss in losses]


def start(weights, text):
    return torch_gpt.Trainer(torch_gpt.Model(OPTIONS, len(text.characters), weights).double(), text, False)


def test_losses(curve):
    text = torch_gpt.Text(OPTIONS)
    trainer = start(curve[0], text)
    assert len(curve[1]) == STEPS
    assert curve[1][-1] < curve[1][0] - 0.3
    assert max(misses(trainer, text, curve[1])) <= 1


@pytest.mark.parametrize("group", [{"weight_decay": 0.05}, {"betas": (0.9, 0.951)}, {"eps": 1e-5}], ids=str)
def test_another_optimiser_is_rejected(curve, group):
    text = torch_gpt.Text(OPTIONS)
    trainer = start(curve[0], text)
    trainer.optimiser.param_groups[0].update(group)
    assert max(misses(trainer, text, curve[1])) > 2
