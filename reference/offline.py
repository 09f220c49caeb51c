"""A whole conversation: samples in, every named activation out.

Unusual: no cache anywhere. Each new id or code frame comes from running its network on the whole history again, so that
what a cache would have to remember never enters the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from reference.audio.mel import log_mel
from reference.model import VoiceChat
from reference.perception.rnnt import greedy_decode
from voicechat_mlx.conventions import Conventions, find_conventions
from voicechat_mlx.errors import AudioError

Traces = dict[str, Tensor]
Draws = Callable[[int], tuple[Tensor, Tensor]]
"""Talker step (0 at position 1) → Gumbel numbers (M, K) and normal numbers (M, latent), M rounds."""

SPELLED_TAIL = 2
"""Of the voice prompt's subwords only the last two are spelled; the others count as masked."""


@torch.no_grad()
def generate(
    model: VoiceChat,
    samples: Tensor | np.ndarray,
    *,
    prompt_ids: Sequence[int] | None = None,
    extra_decoding_seconds: float = 0.0,
    conventions: str | Conventions = "mlx",
    draws: Draws | None = None,
) -> Traces:
    """(n,) float32 at 16 kHz → activations by name, floats as float32 and ids as int32, on the CPU.

    `prompt_ids` is [BOS] + encode(prompt) + [EOS], or None. Without `draws` the most likely component and no noise are
    taken. Guidance, nucleus mass and noise scale are those of `model.config`.
    """
    choices = find_conventions(conventions)
    wave = torch.as_tensor(samples, dtype=torch.float32, device=model.control_codes.device)
    if len(wave) == 0:
        raise AudioError("there are no samples; give at least one")
    silence = wave.new_zeros(round(model.config.input_sample_rate * extra_decoding_seconds))
    traces = listen(model, torch.cat([wave, silence]), choices)
    prompt = torch.tensor([prompt_ids or []], dtype=torch.int64, device=wave.device)
    traces |= think(model, traces["perception.projected"], prompt)
    text = traces.pop("text.timeline")
    traces |= speak(model, text, choices, draws or no_draws(model))
    traces |= decode(model, traces["tts.step_codes"], prompt.shape[1], choices)
    return {name: own_copy(x) for name, x in traces.items()}


def own_copy(x: Tensor) -> Tensor:
    """A float32 or int32 copy on the CPU that shares memory with no other trace, so that one file can hold them."""
    dtype = torch.float32 if x.is_floating_point() else torch.int32
    return x.to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)


def listen(model: VoiceChat, wave: Tensor, choices: Conventions) -> Traces:
    """Samples → mel, every encoder stage, both outputs of the perception, RNNT pieces and their frames."""
    mel, valid_rows = log_mel(wave, model.config.audio_config.preprocessor, choices)
    traces = {"mel": mel}
    encoder = model.perception.encoder
    stages: list[tuple[str, nn.Module]] = [("encoder.pre_encode", encoder.pre_encode)]
    stages += [(f"encoder.layers.{index}", layer) for index, layer in enumerate(encoder.layers)]
    hooks = [stage.register_forward_hook(recorder(traces, name)) for name, stage in stages]
    try:
        projected, encoded, lengths = model.perception(mel, torch.tensor([valid_rows], device=wave.device))
    finally:
        for hook in hooks:
            hook.remove()
    heard = encoded[0, : int(lengths[0])]
    pieces, frames = greedy_decode(model.rnnt_decoder, model.rnnt_joint, heard, model.config.audio_config)
    ids = {"rnnt.ids": torch.tensor(pieces, dtype=torch.int64), "rnnt.frames": torch.tensor(frames, dtype=torch.int64)}
    return traces | {"perception.encoded": encoded, "perception.projected": projected} | ids


def recorder(traces: Traces, name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
    """A forward hook that keeps a module's (first) output under `name`."""

    def record(_module: nn.Module, _inputs: tuple[object, ...], output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        traces[name] = first

    return record


def think(model: VoiceChat, projected: Tensor, prompt: Tensor) -> Traces:
    """Audio channel (1, F, H), prompt ids (1, P) → fused inputs, hidden states, logits, both id sequences; N = P + F.

    Position t hears frame t and its own words of t - 1. During the prompt both words are PAD whatever the heads say.
    """
    pad, prompt_frames = model.config.pad_token_id, prompt.shape[1]
    audio = torch.cat([model.embed_tokens(prompt), projected], dim=1)
    text = torch.full(audio.shape[:2], pad, device=audio.device)
    function = text.clone()
    boost = text_boost(model)
    for t in range(prompt_frames, audio.shape[1]):
        fused = model.fuse(shift(text, t, pad), audio[:, : t + 1], shift(function, t, pad))
        hidden = model.llm(fused)
        text[0, t] = (model.lm_head(hidden[0, -1]) + boost).argmax()
        function[0, t] = model.function_head(hidden[0, -1]).argmax()
    return {
        "llm.fused": fused,  # of the last round, which saw the whole timeline
        "llm.hidden": hidden,
        "llm.text_logits": model.lm_head(hidden),
        "llm.function_logits": model.function_head(hidden),
        "text.timeline": text,
        "text.ids": text[0, prompt_frames:],
        "function.ids": function[0, prompt_frames:],
    }


def shift(ids: Tensor, t: int, first: int) -> Tensor:
    """(1, N) → (1, t + 1): what was said one position earlier, `first` before anything was."""
    return torch.cat([torch.full_like(ids[:, :1], first), ids[:, :t]], dim=1)


def text_boost(model: VoiceChat) -> Tensor:
    """(V,) constants that the configuration adds to the text logits of PAD, BOS and EOS."""
    config = model.config
    boost = torch.zeros(config.text_config.vocab_size, device=model.control_codes.device)
    boost[config.pad_token_id] += config.inference_pad_boost
    boost[config.bos_token_id] += config.inference_bos_boost
    boost[config.eos_token_id] += config.inference_eos_boost
    return boost


def voice_prompt(model: VoiceChat, choices: Conventions) -> tuple[Tensor, Tensor, Tensor]:
    """→ codes (1, 37, Q), what each position hears of them (1, 37, h) and its text conditioning (1, 37, h).

    The codes are those of silence, the first and the last frame unknown. The subwords are PAD, the last two spelled.
    """
    config, frames = model.config, model.audio_prompt_latent.shape[1]
    position = torch.arange(frames, device=model.control_codes.device).unsqueeze(0)
    first, last = position == 0, position == frames - 1
    silence = torch.zeros(1, (frames + 1) * config.codec_config.samples_per_frame, device=position.device)
    codes = model.codec.encode(silence)[:, :frames]
    codes = torch.where((first | last).unsqueeze(-1), model.talker.mask_id, codes)
    heard = model.talker.embed_history(codes, last, model.audio_prompt_latent)
    final_subword = config.eos_token_id if choices.warmup_ends_with_eos else config.pad_token_id
    subwords = torch.where(last, final_subword, config.pad_token_id)
    return codes, heard, model.talker.embed_subword(subwords, position >= frames - SPELLED_TAIL)


def speak(model: VoiceChat, text: Tensor, choices: Conventions, draws: Draws) -> Traces:
    """Text ids of the timeline (1, N) → the talker's activations and the codes of positions 1 … N - 1."""
    talker, tts = model.talker, model.config.tts_config
    prompt_codes, heard, prompt_cond = voice_prompt(model, choices)
    frames, spoken = prompt_codes.shape[1], text[:, 1:]
    cond = torch.cat([prompt_cond, talker.embed_subword(spoken, torch.ones_like(spoken, dtype=torch.bool))], dim=1)
    rounds = (1, 0, len(talker.counts))
    codes, means, logs = prompt_codes[:, :0], heard.new_zeros(*rounds, tts.latent_size), heard.new_zeros(rounds)
    previous = prompt_codes[:, -1:]
    for step in range(spoken.shape[1]):
        if int(spoken[0, step]) == model.config.eos_token_id:
            previous = model.codec_silence_tokens.reshape(1, 1, -1)
        heard = torch.cat([heard, talker.embed_codes(previous)], dim=1)
        _, hidden = talker(heard, cond[:, : heard.shape[1]])
        gumbel, noise = (torch.as_tensor(numbers, device=text.device).unsqueeze(0) for numbers in draws(step))
        frame, mean, log_std = talker.generate_codes(
            hidden[:, -1], gumbel, noise, guidance=tts.guidance_scale, top_p=tts.top_p, noise_scale=tts.noise_scale
        )
        previous = frame.unsqueeze(1)
        codes, means, logs = append(codes, frame), append(means, mean), append(logs, log_std)
    fused, hidden = talker(heard, cond)
    return {
        "tts.prompt_codes": prompt_codes[0],
        "tts.warmup_cond": prompt_cond,
        "tts.warmup_fused": fused[:, :frames],
        "tts.warmup_hidden": hidden[:, :frames],
        "tts.cond": cond[:, frames:],
        "tts.fused": fused[:, frames:],
        "tts.hidden": hidden[:, frames:],
        "tts.mog_mu": means[0],
        "tts.mog_logs": logs[0],
        "tts.step_codes": codes[0],
    }


def append(history: Tensor, item: Tensor) -> Tensor:
    """(1, T, …), (1, …) → (1, T + 1, …)."""
    return torch.cat([history, item.unsqueeze(1)], dim=1)


def no_draws(model: VoiceChat) -> Draws:
    """Zeros for every step: the most likely component, no noise."""
    tts = model.config.tts_config
    rounds = len(model.talker.counts)
    return lambda step: (torch.zeros(rounds, tts.mog_head.num_predictions), torch.zeros(rounds, tts.latent_size))


def decode(model: VoiceChat, step_codes: Tensor, prompt_frames: int, choices: Conventions) -> Traces:
    """Codes of positions 1 … N - 1 → codes of the audio frames, latents, features and 1764 samples a frame."""
    first = model.codec_silence_tokens if choices.silent_first_frame else torch.zeros_like(model.codec_silence_tokens)
    timeline = torch.cat([first.unsqueeze(0), step_codes])
    codes = model.replace_control_codes(timeline[prompt_frames:])
    latents = model.codec.prvq.decode(codes.unsqueeze(0))
    features = model.codec.decoder(latents)
    audio = model.codec.synthesise(features)
    return {"tts.codes": codes, "codec.latents": latents, "codec.features": features, "codec.audio": audio[0]}
