"""Networks 3 and 4: from text ids to codes, and between codes and sound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx import nn
from torch import Tensor

from reference.audio.stft import stft
from reference.offline import SPELLED_TAIL
from voicechat_mlx.codec.stft import ShortStft
from voicechat_mlx.report.rows import compare, compare_ids, compare_snr
from voicechat_mlx.verify.limits import share_of
from voicechat_mlx.verify.sides import to_mlx, to_torch
from voicechat_mlx.verify.track import OWN, Track, Work

TONE_HZ, TONE_SECONDS, TONE_AMPLITUDE = 440.0, 1.0, 0.5
TALKER = ("rvq_embs", "embed_code", "embed_subword", "gated_fusion_audio_text", "mog_head", "null_emb", "bos_emb")
"""What of the talker is in memory beside one layer of its backbone."""
TONE = "440 Hz tone, round trip"


def compare_encoder(work: Work, wave: Tensor) -> tuple[Tensor, Tensor]:
    """(1, N) samples of speech → the twin's codes of them (1, F, Q) and of the silent voice prompt (1, P, Q)."""
    work.section = "codec, encoder"
    config = work.pair.checkpoint.config
    silence = torch.zeros(1, (config.voice_prompt_frames + 1) * config.codec_config.samples_per_frame)
    with work.filled("codec.encoder", "codec.prvq") as (ours, theirs):
        spectrum = stft(wave, config.codec_config.n_fft, config.codec_config.hop_length)
        features = torch.cat([spectrum.real, spectrum.imag], dim=-1)
        transform = ShortStft(config.codec_config.n_fft, config.codec_config.hop_length).transform
        work.add(compare("codec.spectrogram", transform(to_mlx(wave)), features, work.limits.float32))
        latents = through_layers(work, "codec.encoder", ours.codec.encoder, theirs.codec.encoder, features)
        codes = theirs.codec.prvq.encode(latents)
        allowed = share_of(codes, work.limits.codec_codes)
        work.add(compare_ids("codec.codes", ours.codec.prvq.encode(to_mlx(latents)), codes, allowed))
        prompt = theirs.codec.encode(silence)[:, :-1]
        work.add(compare_ids("codec.codes of silence", ours.codec.encode(to_mlx(silence))[:, :-1], prompt, allowed))
    return codes, prompt


def compare_decoder(work: Work, codes: Tensor) -> None:
    """Codes (1, F, Q) → sound, and a tone through the whole codec of either side."""
    work.section = "codec, decoder"
    rate = work.pair.checkpoint.config.codec_config.sample_rate
    frame = work.pair.checkpoint.config.codec_config.samples_per_frame
    with work.filled("codec") as (ours, theirs):
        latents = theirs.codec.prvq.decode(codes)
        work.add(compare("codec.prvq", ours.codec.prvq.decode(to_mlx(codes)), latents, work.limits.float32))
        through_layers(work, "codec.decoder", ours.codec.decoder, theirs.codec.decoder, latents)
        mine, wave = ours.codec.decode(to_mlx(codes)), theirs.codec.decode(codes)
        work.add(compare_snr("codec.audio", mine, wave, work.limits.audio_db))
        tone = sine(rate, frame)
        heard = round(TONE_SECONDS * rate)
        round_trip = ours.codec.decode(ours.codec.encode(to_mlx(tone)))[:, :heard]
        work.add(compare_snr(f"{TONE}, MLX", round_trip, tone[:, :heard], None))
        round_trip = theirs.codec.decode(theirs.codec.encode(tone))[:, :heard]
        work.add(compare_snr(f"{TONE}, twin", round_trip, tone[:, :heard], None))


def compare_talker(work: Work, text: Tensor, codes: Tensor, prompt: Tensor) -> None:
    """Text ids (1, N), the codes said before each position (1, N, Q), the voice prompt's codes (1, P, Q) → codes."""
    work.section = "talker"
    dtype, limit = work.pair.mlx.talker_dtype, work.limits.talker
    kept = [f"talker.{name}" for name in TALKER]
    with work.filled(*kept, "audio_prompt_latent") as (ours, theirs):
        position = torch.arange(prompt.shape[1]).unsqueeze(0)
        first, last = position == 0, position == prompt.shape[1] - 1
        prompt = torch.where((first | last).unsqueeze(-1), theirs.talker.mask_id, prompt)
        said = torch.cat([prompt[:, -1:], codes[:, :-1]], dim=1)
        pads = torch.full_like(position, work.pair.checkpoint.config.pad_token_id)
        ids = torch.cat([pads, text], dim=1)
        tail = position >= prompt.shape[1] - SPELLED_TAIL
        spelled = torch.cat([tail, torch.ones_like(text, dtype=torch.bool)], dim=1)
        cond = theirs.talker.embed_subword(ids, spelled)
        mine = ours.talker.embed_subword(to_mlx(ids), mx.array(spelled.numpy()))
        work.add(compare("talker.embed_subword", mine, cond, limit))
        embedded = theirs.talker.embed_codes(said)
        work.add(compare("talker.embed_codes", ours.talker.embed_codes(to_mlx(said)), embedded, limit))
        heard = torch.cat([theirs.talker.embed_history(prompt, last, theirs.audio_prompt_latent), embedded], dim=1)
        fused = fuse(theirs.talker, heard, cond)
        alone = ours.talker.fuse(to_mlx(heard, dtype), to_mlx(cond, dtype))
        work.add(compare("talker.gated_fusion", alone, fused, limit))
        track = Track(work, fused, ours.talker.fuse(to_mlx(heard, dtype), mine), dtype, limit)
        for index in range(work.pair.checkpoint.config.tts_config.num_hidden_layers):
            with work.filled(f"talker.backbone.layers.{index}") as (layers, twins):
                backbone = layers.talker.backbone
                backbone.layers, backbone.norm = [backbone.layers[index]], nn.Identity()
                track.step(f"talker.backbone.layers.{index}", backbone, twins.talker.backbone.layers[index])
        with work.filled("talker.backbone.norm") as (norms, twins):
            track.step("talker.backbone.norm", norms.talker.backbone.norm, twins.talker.backbone.norm)
        track.note_drift("talker.hidden")
        compare_codes(work, track, ours.talker, theirs.talker, prompt.shape[1])


def compare_codes(work: Work, hidden: Track, ours: Any, theirs: Any, prompt_frames: int) -> None:
    """Hidden rows of the positions behind the prompt → their codes, the same random numbers on both sides."""
    tts = work.pair.checkpoint.config.tts_config
    options = {"guidance": tts.guidance_scale, "top_p": tts.top_p, "noise_scale": tts.noise_scale}
    expected, alone, own = [], [], []
    key = mx.random.key(0)
    for place in range(prompt_frames, hidden.twin.shape[1]):
        key, step = mx.random.split(key)
        drawn = ours.draws(step)
        numbers = (to_torch(drawn.gumbel).unsqueeze(0), to_torch(drawn.normal).unsqueeze(0))
        row = hidden.twin[:, place]
        expected.append(theirs.generate_codes(row, *numbers, **options)[0][0])
        alone.append(ours.generate_codes(to_mlx(row, hidden.dtype), drawn))
        own.append(ours.generate_codes(hidden.own[:, place], drawn))
        mx.eval(alone[-1], own[-1])
    codes = torch.stack(expected)
    allowed = share_of(codes, work.limits.codes)
    work.add(compare_ids("talker.codes", mx.stack(alone), codes, allowed))
    work.add(compare_ids("talker.codes", mx.stack(own), codes, None), run=OWN)


def fuse(talker: Any, heard: Tensor, cond: Tensor) -> Tensor:
    """The twin's input to its backbone: rows with text, then rows without (2, T, h)."""
    conditions = torch.cat([cond, talker.null_emb.expand_as(cond)])
    fused: Tensor = talker.gated_fusion_audio_text(torch.cat([heard, heard]), conditions)
    return fused


def through_layers(work: Work, name: str, ours: Any, theirs: Any, x: Tensor) -> Tensor:
    """(B, T, C) through each layer of encoder or decoder, the twin's with channels before time."""
    layers: Sequence[Any] = theirs.layers
    for index, (mine, layer) in enumerate(zip(ours.layers, layers, strict=True)):
        y = layer(x.transpose(1, 2)).transpose(1, 2)
        work.add(compare(f"{name}.layers.{index}", mine(to_mlx(x.contiguous())), y, work.limits.float32))
        x = y
    return x


def sine(rate: int, frame: int) -> Tensor:
    """(1, N) of the tone, N the whole frames that hold `TONE_SECONDS` of it."""
    count = -(-round(TONE_SECONDS * rate) // frame) * frame
    tone = TONE_AMPLITUDE * np.sin(2 * np.pi * TONE_HZ * np.arange(count) / rate)
    return torch.from_numpy(tone.astype(np.float32)).unsqueeze(0)
