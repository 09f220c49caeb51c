"""Any small configuration runs, and every activation has the shape that its name promises."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.models import Float32, build, shallow, speech
from tests.properties.strategies import configs, lengths
from voicechat_mlx import generate
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.talker.ear_tts import mask_schedule
from voicechat_mlx.trace import trace

PROMPT = "Be concise."


def expected_shapes(model: VoiceChat, samples: int, prompt_ids: int) -> dict[str, tuple[int, ...]]:
    """The documented shapes, from the configuration and the formulas of the specification alone."""
    config = model.config
    text, audio, tts, codec = config.text_config, config.audio_config, config.tts_config, config.codec_config
    rows = 1 + samples // 160
    frames = (rows - 2) // 8 + 2 if rows > 1 else 1
    steps, voice = prompt_ids + frames, int(tts.audio_prompt_duration * 22050 / 1764 + 1e-9)
    hidden, levels, width = text.hidden_size, tts.num_quantizers, tts.hidden_size
    rounds = sum(count > 0 for count in mask_schedule(levels, tts.num_iterations, tts.exponent))
    encoded = (1, frames, audio.encoder.d_model)
    return {
        "mel": (1, rows, audio.preprocessor.features),
        "encoder.pre_encode": encoded,
        **{f"encoder.layers.{index}": encoded for index in range(audio.encoder.n_layers)},
        "perception.encoded": encoded,
        "perception.projected": (1, frames, hidden),
        "llm.fused": (1, steps, hidden),
        "llm.hidden": (1, steps, hidden),
        "llm.text_logits": (1, steps, text.vocab_size),
        "llm.function_logits": (1, steps, text.vocab_size),
        "text.ids": (frames,),
        "function.ids": (frames,),
        "tts.prompt_codes": (voice, levels),
        "tts.warmup_cond": (1, voice, width),
        "tts.warmup_fused": (2, voice, width),
        "tts.warmup_hidden": (2, voice, width),
        "tts.cond": (1, steps - 1, width),
        "tts.fused": (2, steps - 1, width),
        "tts.hidden": (2, steps - 1, width),
        "tts.mog_mu": (steps - 1, rounds, tts.latent_size),
        "tts.mog_logs": (steps - 1, rounds),
        "tts.step_codes": (steps - 1, levels),
        "tts.codes": (frames, levels),
        "codec.latents": (1, frames, codec.latent_dim),
        "codec.features": (1, frames * 1764 // codec.hop_length, codec.n_fft + 2),
        "codec.audio": (1764 * frames,),
    }


def check(model: VoiceChat, pcm: Float32, prompt: str, seed: int) -> None:
    found = trace(model, pcm, prompt, 0.0, seed)
    ids = model.tokenizer.prompt_ids(prompt, bos=1, eos=2)
    shapes = {name: array.shape for name, array in found.items()}
    pieces = shapes.pop("rnnt.ids")
    assert shapes.pop("rnnt.frames") == pieces
    assert shapes == expected_shapes(model, len(pcm), len(ids))
    for name, array in found.items():
        assert array.dtype == (np.float32 if array.dtype.kind == "f" else np.int32)
        assert np.isfinite(array).all(), name
    result = generate(model, pcm, prompt, 0.0, seed)
    np.testing.assert_array_equal(result.audio, found["codec.audio"])
    np.testing.assert_array_equal(result.audio_codes, found["tts.codes"])
    in_range = (found["tts.step_codes"] >= 0) & (found["tts.step_codes"] < model.config.tts_config.codebook_size)
    assert in_range.all()


@given(overrides=configs(), length=lengths(), prompt=st.sampled_from(["", PROMPT]), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_every_small_configuration_runs_with_the_documented_shapes(
    overrides: dict[str, Any], length: int, prompt: str, seed: int
) -> None:
    check(build(overrides, seed=seed), speech(1.0)[:length], prompt, seed)


@given(length=lengths())
@example(length=1)
@example(length=1280)
@settings(max_examples=4)
def test_one_model_runs_at_every_length(length: int) -> None:
    check(shallow(), speech(1.0)[:length], PROMPT, 0)
