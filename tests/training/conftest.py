"""A tiny model with the content's own vocabularies; its weights are random."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reference.model import VoiceChat
from reference.training import model_files
from reference.training.vocabularies import text_tokenizer


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    text_tokenizer(512).save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def model(vocabulary_folder: Path, monkeypatch: pytest.MonkeyPatch) -> VoiceChat:
    """Without randomness when it speaks: no noise, only the likeliest component."""
    read = model_files.model_values

    def values(arguments: argparse.Namespace) -> dict[str, Any]:
        config = json.loads(json.dumps(read(arguments)))
        config["tts_config"] |= {"noise_scale": 0.0, "top_p": 1e-6, "sliding_window": 20}
        return config

    monkeypatch.setattr(model_files, "model_values", values)
    torch.manual_seed(0)
    made = model_files.new_model(argparse.Namespace(settings="smoke"), torch.device("cpu"))
    model_files.set_text_vocabulary(made, vocabulary_folder)
    with torch.no_grad():
        for book in made.codec.prvq.mus_list:
            book.normal_()
        made.talker.rvq_embs.copy_(torch.stack(list(made.codec.prvq.mus_list)))
        made.talker.gated_fusion_audio_text.audio_proj.weight.mul_(25)
        frames = made.audio_prompt_latent.shape[1] + 1
        silence = torch.zeros(1, frames * made.config.codec_config.samples_per_frame)
        made.codec_silence_tokens.copy_(made.codec.encode(silence)[0, -1])
    return made.eval()
