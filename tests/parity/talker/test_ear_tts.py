from __future__ import annotations

import torch

from reference.offline import voice_prompt
from reference.talker.ear_tts import round_sizes
from tests.parity.agreement import assert_agreement
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import FLOAT32
from voicechat_mlx.conventions import PROFILES
from voicechat_mlx.report.rows import compare, compare_ids
from voicechat_mlx.talker.ear_tts import mask_schedule


def test_the_voice_prompt_agrees_in_both_conventions(pair: Pair) -> None:
    talker, config = pair.mlx.talker, pair.twin.config
    for conventions in PROFILES.values():
        codes, heard, cond = voice_prompt(pair.twin, conventions)
        _, hidden = pair.twin.talker(heard, cond)
        last = config.eos_token_id if conventions.warmup_ends_with_eos else config.pad_token_id
        subwords = torch.full(codes.shape[:2], config.pad_token_id)
        subwords[:, -1] = last
        latent = pair.mlx.audio_prompt_latent
        ours = talker.warm_up(to_mlx(codes), latent, to_mlx(subwords), talker.make_cache())
        assert_agreement([compare_ids("codes", pair.mlx.voice_prompt(conventions).codes, codes)])
        assert_agreement([compare("hidden", ours, hidden, FLOAT32)])


def test_every_schedule_agrees() -> None:
    for levels in (1, 2, 8, 31, 32):
        for iterations in (1, 3, 8, 40):
            for exponent in (0.5, 1.0, 3.0):
                counts = [count for count in mask_schedule(levels, iterations, exponent) if count > 0]
                assert counts == round_sizes(levels, iterations, exponent)
