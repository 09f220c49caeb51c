"""How the talker sounds: its answers, spoken with the shipping settings, heard by the model's own recogniser."""

from __future__ import annotations

import json
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soxr
import torch
from numpy.typing import NDArray
from torch import Tensor

from reference.model import VoiceChat
from reference.training.content import transcript
from reference.training.data import USER_RATE, chosen
from reference.training.features import LogMel
from reference.training.model_files import load_into, load_tensors, read_pieces
from reference.training.perception import FRAME, transcribe_waves
from reference.training.recognise import edit_distance, error_rates
from reference.training.rollout import Rollout
from reference.training.talker_rows import RowWriter, TalkerRows
from reference.training.vocabularies import Pieces

LEAD, TAIL = 6, 6
"""Positions of silence before and after the answer."""
SAMPLES_KEPT = 16


def judge_speech(
    model: VoiceChat, writer: RowWriter, texts: Sequence[str], count: int, work: Path, seed: int
) -> dict[str, float]:
    """Speak `count` of the answers → figures, and some of them as WAV files into WORK/talker/samples."""
    spoken = chosen(texts, count)
    longest = max(writer.planner.answer(text).end for text in spoken)
    device = model.codec_silence_tokens.device
    rows = writer.one_answer(spoken, LEAD + longest + 1 + TAIL, LEAD, device)
    torch.manual_seed(seed)
    codes = Rollout(model, len(spoken), rows.text.shape[1], graphs=False).generate(rows.text.long())
    audio = decode(model, codes)
    figures = loudness(rows, audio, codes) | {"answers": len(spoken)}
    save_samples(work / "talker" / "samples", spoken, audio, model.config.output_sample_rate)
    if list((work / "perception").glob("weights-*.safetensors")):
        load_into(model, load_tensors(work / "perception"))
        figures |= recognise(model, spoken, audio, read_pieces(work / "data"))
        true = decode(model, rows.codes.long())
        original = recognise(model, spoken, true, read_pieces(work / "data"))
        figures |= {f"{name}, from true codes": value for name, value in original.items()}
    return figures


@torch.no_grad()
def decode(model: VoiceChat, codes: Tensor, chunk: int = 64) -> Tensor:
    """(B, T, Q) → (B, 1764 T)."""
    return torch.cat([model.codec.decode(part) for part in codes.split(chunk)])


def loudness(rows: TalkerRows, audio: Tensor, codes: Tensor) -> dict[str, float]:
    """Median RMS of frames that should sound, largest of frames that should not (the first after speech left out), and
    the share of first-book codes that are the true ones on speech.
    """
    frames = audio.unflatten(1, (rows.text.shape[1], -1))
    rms = frames.square().mean(2).sqrt()
    speech = rows.weight == 1
    near = speech.clone()
    near[:, 1:] |= speech[:, :-1]
    right = (codes[..., 0] == rows.codes[..., 0])[speech].float().mean()
    quiet = rms[~near]
    return {
        "rms speaking": round(float(rms[speech].median()), 5),
        "rms silent, 99th percentile": round(float(torch.quantile(quiet[:100000], 0.99)), 6),
        "first book": round(float(right), 4),
    }


def recognise(model: VoiceChat, texts: Sequence[str], audio: Tensor, pieces: Pieces) -> dict[str, float]:
    """Sentence exact and piece error in percent, by the model's own recogniser."""
    device = audio.device
    log_mel = LogMel(model.config.audio_config.preprocessor).to(device)
    at_16k = [to_user_rate(row) for row in audio.cpu().numpy()]
    samples = -(-len(at_16k[0]) // FRAME) * FRAME
    waves = torch.from_numpy(np.stack([np.pad(row, (0, samples - len(row))) for row in at_16k])).to(device)
    with torch.no_grad():
        heard = [text for part in waves.split(256) for text in transcribe_waves(model, part, pieces, log_mel)]
    true = [transcript(text) for text in texts]
    in_pieces = [
        [[piece for word in pieces.encode_words(text) for piece in word] for text in side] for side in (true, heard)
    ]
    errors = sum(edit_distance(a, b) for a, b in zip(*in_pieces, strict=True))
    rates = error_rates(true, heard)
    return {
        "sentences exact": rates["exact"],
        "word error": rates["word_error"],
        "piece error": round(100 * errors / max(sum(map(len, in_pieces[0])), 1), 3),
    }


def to_user_rate(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """22.05 kHz → 16 kHz."""
    resampled: NDArray[np.float32] = soxr.resample(samples, 22050, USER_RATE)
    return resampled


def save_samples(folder: Path, texts: Sequence[str], audio: Tensor, rate: int) -> None:
    """Some answers as 16-bit WAV, and their texts."""
    folder.mkdir(parents=True, exist_ok=True)
    index = chosen(range(len(texts)), SAMPLES_KEPT)
    for number in index:
        samples = (audio[number].clamp(-1, 1) * 32767).round().to(torch.int16).cpu().numpy()
        with wave.open(str(folder / f"{number:04d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(samples.itemsize)
            file.setframerate(rate)
            file.writeframes(samples.tobytes())
    (folder / "texts.json").write_text(json.dumps({f"{number:04d}": texts[number] for number in index}, indent=1))
