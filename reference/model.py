"""VoiceChat: the four networks under the names that checkpoints use, and the one equation that joins them.

Unusual: nothing loops here (offline.py does), and two heads read the same hidden state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reference.codec.codec import Codec
from reference.llm.nemotron_h import NemotronH
from reference.perception.conformer import Perception
from reference.perception.rnnt import JointNetwork, RnntDecoder
from reference.talker.ear_tts import EarTts
from voicechat_mlx.config import VoiceChatConfig


class VoiceChat(nn.Module):
    """Every tensor of a checkpoint, under its canonical name."""

    control_codes: Tensor
    codec_silence_tokens: Tensor

    def __init__(self, config: VoiceChatConfig, flag_entries: tuple[int, int] | None = None) -> None:
        """`flag_entries`: lengths of the talker's two flag tables, by default one for every text id (and one more)."""
        super().__init__()
        self.config = config
        text, tts = config.text_config, config.tts_config
        self.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.llm = NemotronH(text)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.function_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.perception = Perception(config.audio_config)
        self.rnnt_decoder = RnntDecoder(config.audio_config.decoder)
        self.rnnt_joint = JointNetwork(config.audio_config.joint)
        self.talker = EarTts(tts, flag_entries or (text.vocab_size + 1, text.vocab_size))
        self.codec = Codec(config.codec_config)
        self.audio_prompt_latent = nn.Parameter(torch.zeros(1, config.voice_prompt_frames, tts.hidden_size))
        self.register_buffer("control_codes", torch.arange(tts.codebook_size, tts.codebook_size + 3))
        self.register_buffer("codec_silence_tokens", torch.zeros(tts.num_quantizers, dtype=torch.int64))

    def fuse(self, previous_text: Tensor, audio: Tensor, previous_function: Tensor) -> Tensor:
        """Ids (B, T), audio channel (B, T, H), ids (B, T) → input of the language model (B, T, H)."""
        function = self.config.function_channel_weight * self.embed_tokens(previous_function)
        fused: Tensor = self.embed_tokens(previous_text) + audio + function
        return fused

    def replace_control_codes(self, codes: Tensor) -> Tensor:
        """(…, Q): every control code becomes the silence code of its book."""
        return torch.where(torch.isin(codes, self.control_codes), self.codec_silence_tokens, codes)
