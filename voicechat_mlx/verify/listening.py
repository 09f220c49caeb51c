"""Networks 1 and 2: from samples to the language model's two heads."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from mlx import nn
from numpy.typing import NDArray
from torch import Tensor

from reference.audio.mel import log_mel
from reference.perception.rel_attention import allowed_pairs
from reference.perception.rnnt import greedy_decode
from voicechat_mlx.audio.mel import MelFilterbank, MelStream
from voicechat_mlx.conventions import MLX
from voicechat_mlx.report.rows import compare, compare_ids
from voicechat_mlx.verify.limits import share_of
from voicechat_mlx.verify.sides import to_mlx
from voicechat_mlx.verify.track import OWN, Track, Work

KINDS = {"M": "Mamba-2", "*": "attention", "-": "MLP"}


def compare_perception(work: Work, samples: NDArray[np.float32]) -> Track:
    """Samples at the input rate → the projected frames (1, F, hidden)."""
    work.section = "perception"
    config, dtype = work.pair.checkpoint.config.audio_config, work.pair.mlx.language_dtype
    mel, _ = log_mel(torch.from_numpy(samples), config.preprocessor, MLX)
    stream = MelStream(MelFilterbank(config.preprocessor), MLX)
    work.add(compare("mel", np.concatenate([stream.push(samples), stream.finish()])[None], mel, work.limits.float32))
    track = Track.start(work, mel, dtype, work.limits.language)
    with work.filled("perception.encoder.pre_encode") as (ours, theirs):
        subsample = theirs.perception.encoder.pre_encode
        track.step("encoder.pre_encode", ours.perception.encoder.pre_encode, lambda x: subsample(x, lengths(x))[0])
    for index in range(config.encoder.n_layers):
        with work.filled(f"perception.encoder.layers.{index}") as (ours, theirs):
            every = lengths(track.twin)
            allowed = allowed_pairs(int(every), config.encoder.left_context, every)
            valid = torch.ones(1, int(every), dtype=torch.bool)
            twin = partial(theirs.perception.encoder.layers[index], allowed=allowed, valid=valid)
            track.step(f"encoder.layers.{index}", ours.perception.encoder.layers[index], twin)
    encoded = track.twin
    with work.filled("perception.proj") as (ours, theirs):
        track.step("perception.projected", ours.perception.proj, theirs.perception.proj)
    track.note_drift("perception.projected")
    compare_transcript(work, encoded)
    return track


def compare_transcript(work: Work, encoded: Tensor) -> None:
    """The twin's encoder frames (1, F, d_model) → what either side reads out of them."""
    work.section = "transcript"
    with work.filled("rnnt_decoder", "rnnt_joint") as (ours, theirs):
        config = work.pair.checkpoint.config.audio_config
        heard = theirs.rnnt_joint.enc(encoded)
        work.add(compare("rnnt.joint.enc", ours.rnnt_joint.enc(to_mlx(encoded)), heard, work.limits.float32))
        if work.limits.float32 is None:
            return  # two lists of different lengths cannot be measured, only judged
        ids, frames = greedy_decode(theirs.rnnt_decoder, theirs.rnnt_joint, encoded[0], config)
        found = ours.rnnt.decode(to_mlx(encoded), ours.rnnt.make_cache())
        work.add(compare_ids("rnnt.ids", np.array(found.ids), np.array(ids)))
        work.add(compare_ids("rnnt.frames", np.array(found.frames), np.array(frames)))


def compare_language(work: Work, audio: Track, text: Tensor, function: Tensor) -> None:
    """Projected frames and the ids said before each (1, F) → hidden states, logits and their best ids."""
    work.section = "language model"
    config, dtype = work.pair.checkpoint.config.text_config, work.pair.mlx.language_dtype
    with work.filled("embed_tokens") as (ours, theirs):
        words = to_mlx(text), to_mlx(function)
        fused = theirs.fuse(text, audio.twin, function)
        alone = ours.fuse(words[0], to_mlx(audio.twin, dtype), words[1])
        work.add(compare("llm.fused", alone, fused, work.limits.language))
        track = Track(work, fused, ours.fuse(words[0], audio.own, words[1]), dtype, work.limits.language)
        mx.eval(track.own)
    for index, letter in enumerate(config.hybrid_override_pattern):
        with work.filled(f"llm.layers.{index}") as (ours, theirs):
            ours.llm.layers, ours.llm.norm_f = [ours.llm.layers[index]], nn.Identity()
            track.step(f"llm.layers.{index} {KINDS[letter]}", ours.llm, theirs.llm.layers[index])
    with work.filled("llm.norm_f") as (ours, theirs):
        track.step("llm.norm_f", ours.llm.norm_f, theirs.llm.norm_f)
    track.note_drift("llm.hidden")
    for head, name in (("lm_head", "text"), ("function_head", "function")):
        with work.filled(head) as (ours, theirs):
            compare_head(work, track, ours[head], getattr(theirs, head), name)


def compare_head(work: Work, hidden: Track, ours: Any, theirs: Any, name: str) -> None:
    """Logits, and the id with the largest of them."""
    logits = theirs(hidden.twin)
    best = logits.argmax(dim=-1)
    allowed = share_of(best, work.limits.language_ids)
    alone, own = ours(to_mlx(hidden.twin, hidden.dtype)), ours(hidden.own)
    work.add(compare(f"llm.{name}_logits", alone, logits, work.limits.language))
    work.add(compare_ids(f"llm.{name}_ids", alone.argmax(axis=-1), best, allowed))
    work.add(compare(f"llm.{name}_logits", own, logits, None), run=OWN)
    work.add(compare_ids(f"llm.{name}_ids", own.argmax(axis=-1), best, None), run=OWN)


def lengths(x: Tensor) -> Tensor:
    """All rows of (1, T, C) count."""
    return torch.tensor([x.shape[1]])
