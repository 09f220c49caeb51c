from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from reference.training.loop import UNFINISHED, LoopSettings, Phase, Trainer
from reference.training.options import read_settings


def trainer(folder: Path, model: nn.Module, deadline: float | None = None) -> Trainer:
    settings = LoopSettings(steps=40, seconds=100, learning_rate=0.05, warmup=5, report_every=10)
    arguments = argparse.Namespace(graphs=False, deadline=deadline, time_scale=1.0, again=False, final=False)
    return Trainer("test", folder, model, model.parameters(), settings, arguments, lambda: None)


def phases(model: nn.Linear, begun: list[str]) -> list[Phase]:
    def loss() -> dict[str, Tensor]:
        x = torch.randn(8, 3)
        return {"loss": (model(x) - x.sum(1, keepdim=True)).square().mean()}

    return [
        Phase(until=0.5, computes=(loss,), begin=lambda: begun.append("first")),
        Phase(until=1.0, computes=(loss,), begin=lambda: begun.append("second")),
    ]


def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    weights = []
    for stops in (False, True):
        torch.manual_seed(0)
        model, begun = nn.Linear(3, 1), []
        folder = tmp_path / str(stops)
        if stops:
            with pytest.raises(SystemExit) as stopped:
                trainer(folder, model, deadline=0.0).run(phases(model, begun))
            assert stopped.value.code == UNFINISHED
            torch.manual_seed(99)  # the state brings its own
            model = nn.Linear(3, 1)
        trainer(folder, model).run(phases(model, begun))
        assert begun == ["first", "second"]
        weights.append(model.weight.detach())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_the_loss_falls_and_the_curve_is_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    trainer(tmp_path, model).run(phases(model, []))
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert [entry["step"] for entry in curve] == [10, 20, 30, 40]
    assert curve[-1]["loss"] < 0.5 * curve[0]["loss"]
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_step_whose_gradient_is_not_finite_is_skipped(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    before = model.weight.detach().clone()

    def broken() -> dict[str, Tensor]:
        return {"loss": model(torch.full((1, 3), torch.nan)).sum()}

    trainer(tmp_path, model).run([Phase(until=1.0, computes=(broken,))])
    torch.testing.assert_close(model.weight.detach(), before, rtol=0, atol=0)


def test_settings_name_the_key_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "loop.toml"
    path.write_text("steps = 3\nseconds = 1\nlearning_rate = 1e-3\nstep = 4\n")
    with pytest.raises(ValueError, match="step is unknown"):
        read_settings(LoopSettings, path)
    path.write_text("steps = 3\nseconds = 1\n")
    with pytest.raises(ValueError, match="learning_rate is missing"):
        read_settings(LoopSettings, path)
