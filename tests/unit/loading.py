"""Fill a tiny model from a checkpoint whose tensors may have been changed on the way."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.precision import Precision
from voicechat_mlx.weights import load_weights

FLOAT32 = Precision()


def loaded(folder: Path, change=lambda tensors: None, precision: Precision = FLOAT32) -> dict[str, mx.array]:
    """The parameters of a model filled from the folder's tensors, after `change` has had its way with them."""
    checkpoint = Checkpoint.open(folder)
    tensors = checkpoint.tensors()
    change(tensors)
    model = VoiceChat(checkpoint.config)
    load_weights(model, tensors, checkpoint.config, precision=precision)
    return dict(tree_flatten(model.parameters()))


def refusal(folder: Path, change) -> str:
    """The one line with which the changed tensors are refused."""
    with pytest.raises(CheckpointError) as error:
        loaded(folder, change)
    assert "\n" not in str(error.value)
    return str(error.value)
