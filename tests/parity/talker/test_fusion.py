from __future__ import annotations

import torch

from tests.parity.agreement import assert_agreement
from tests.parity.comparisons.talker import code_blocks
from tests.parity.pair import Pair, to_mlx
from tests.parity.tolerances import FLOAT32
from tests.parity.whole_loop import SPOKEN, twin_loop
from voicechat_mlx.report.rows import compare


def test_code_embedding_fusion_and_control_codes_agree(pair: Pair) -> None:
    assert_agreement(code_blocks(pair, twin_loop(pair, SPOKEN)))


def test_the_gate_agrees_on_inputs_of_any_size(fp32: Pair) -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (1e-3, 1.0, 1e3):
        audio, text = size * torch.randn(2, 2, 9, fp32.twin.config.tts_config.hidden_size, generator=generator)
        ours = fp32.mlx.talker.gated_fusion_audio_text(to_mlx(audio), to_mlx(text))
        theirs = fp32.twin.talker.gated_fusion_audio_text(audio, text)
        assert_agreement([compare(f"fusion of {size:g}", ours, theirs, FLOAT32)])
