"""The tiny checkpoints are what they claim to be: the published layout, awkward sizes, every part moving."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
import soundfile

import voicechat_mlx as vc
from fixtures.make_tiny import VARIANTS, make
from fixtures.tiny_config import rnnt_pieces, tiny_config
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.cli.common import BUNDLED_QUESTION
from voicechat_mlx.text import TextTokenizer
from voicechat_mlx.trace import trace

EOS, PAD, MAX_SYMBOLS, CONTROL_CODES = 2, 12, 10, (3, 11, 17)
QUESTION = Path(__file__).resolve().parents[2] / "fixtures" / "question.wav"
NAMES = re.compile(
    r"""
    stt_model\.(
        (embed_tokens | lm_head | function_head | llm\.norm_f | llm\.layers\.\d+\.norm)\.weight
      | llm\.layers\.\d+\.mixer\.(
            (in_proj | out_proj | norm | conv1d | [qkvo]_proj | up_proj | down_proj)\.weight
          | conv1d\.bias | A_log | D | dt_bias )
      | perception\.proj\.(weight | bias)
      | perception\.encoder\.pre_encode\.(conv\.[02356] | out)\.(weight | bias)
      | perception\.encoder\.layers\.\d+\.(
            (norm_(feed_forward1 | self_att | conv | feed_forward2 | out) | conv\.batch_norm)\.(weight | bias)
          | feed_forward[12]\.linear[12]\.weight
          | self_attn\.(linear_(q | k | v | pos | out)\.weight | pos_bias_[uv])
          | conv\.(pointwise_conv[12] | depthwise_conv)\.weight )
      | rnnt_decoder\.prediction\.(embed\.weight | dec_rnn\.lstm\.(weight | bias)_(ih | hh)_l[01])
      | rnnt_joint\.(enc | pred | joint_net\.2)\.(weight | bias) )
  | tts_model\.(_control_codes | codec_silence_tokens | audio_prompt_latents\.Aria)
  | tts_model\.tts_model\.(
        bos_emb | null_emb | rvq_embs | (embed_code | backbone\.norm)\.weight
      | backbone\.layers\.\d+\.(
            ((input | post_attention | (pre | post)_feedforward)_layernorm | mlp\.(gate | up | down)_proj
          | self_attn\.([qkvo]_proj | [qk]_norm))\.weight )
      | embed_subword\.(
            (embed_tokens | proj_embedding | backbone\.encoder\.norm)\.weight
          | backbone\.encoder\.layers\.0\.(
                ((pre | post)_(self_attn | feedforward)_layernorm | self_attn\.[qkvo]_proj
              | mlp\.(gate | up | down)_proj)\.weight )
          | subword_flag_emb\.(pad_tensor | is_continuation | cont_emb\.weight)
          | bos_eos_emb\.(pad_tensor | special_flags | special_emb\.weight) )
      | gated_fusion_audio_text\.((audio | text)_proj\.(weight | bias) | gate | residual_scale | final_norm\.weight)
      | mog_head\.(
            (mlp_stack\.[012]\.(pre_norm | post_norm | mlp\.(gate | up | down)_proj) | mlp_stack\.3)\.weight
          | proj_(logits | mus | logs | else)\.weight | low_mat ) )
  | tts_model\.audio_codec\.(
        (encoder | decoder)\.layers\.\d+\.(weight | (dwconv | norm | pwconv[12])\.(weight | bias))
      | prvq\.(mus_list\.\d+ | variance_list\.\d+\.variance) )
    """,
    re.VERBOSE,
)
"""Every tensor name of a published checkpoint."""


def test_every_name_is_one_of_the_published_names(tiny_fp32) -> None:
    strangers = [name for name in Checkpoint.open(tiny_fp32).tensors() if not NAMES.fullmatch(name)]
    assert strangers == []


def test_the_same_arguments_give_the_same_tensors(tmp_path, tiny_bf16) -> None:
    again = Checkpoint.open(make(tmp_path, "bf16")).tensors()
    first = Checkpoint.open(tiny_bf16).tensors()
    assert again.keys() == first.keys()
    assert all(mx.array_equal(again[name], first[name]) for name in first)


def test_another_seed_gives_other_tensors(tmp_path, tiny_fp32) -> None:
    other = Checkpoint.open(make(tmp_path, "fp32", seed=1)).tensors()
    name = "stt_model.lm_head.weight"
    assert not mx.array_equal(other[name], Checkpoint.open(tiny_fp32).tensors()[name])


def test_changing_one_size_leaves_the_other_tensors_alone(tmp_path, tiny_fp32) -> None:
    deeper = Checkpoint.open(make(tmp_path, "fp32", tts_config={"num_hidden_layers": 5})).tensors()
    plain = Checkpoint.open(tiny_fp32).tensors()
    assert len(deeper) > len(plain)
    assert all(mx.array_equal(deeper[name], plain[name]) for name in plain)


def test_an_override_of_a_key_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        tiny_config({"tts_config": {"sliding_windows": 3}})


def test_variants_hold_what_their_names_say(tiny_bf16, tiny_torch_layout, tiny_4bit) -> None:
    types = {tensor.dtype for tensor in Checkpoint.open(tiny_bf16).tensors().values()}
    assert types == {mx.bfloat16, mx.int32}
    assert {tensor.dtype for tensor in Checkpoint.open(tiny_torch_layout).tensors().values()} == {mx.float32, mx.int64}
    assert len(Checkpoint.open(tiny_4bit).headers) == 2
    config = json.loads((tiny_4bit / "config.json").read_text(encoding="utf-8"))
    assert config["quantization"] == config["quantization_config"]
    assert "stt_model.llm.layers.0.mixer.in_proj" in config["quantization"]


def test_an_unknown_variant_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="variant 'int8' is unknown; choose one of fp32"):
        make(tmp_path, "int8")


def test_windows_are_shorter_than_forty_frames_and_every_kind_of_layer_occurs(tiny_fp32) -> None:
    config = Checkpoint.open(tiny_fp32).config
    tts = config.tts_config
    assert config.audio_config.encoder.left_context < 40
    assert tts.sliding_window < config.voice_prompt_frames == 37
    assert set(config.text_config.hybrid_override_pattern) == set("M*-")
    layers = [(index + 1) % tts.sliding_window_pattern == 0 for index in range(tts.num_hidden_layers)]
    assert set(layers) == {True, False}


def test_no_kernel_looks_the_same_in_both_layouts(tiny_fp32, tiny_torch_layout) -> None:
    mlx, torch = (Checkpoint.open(folder).tensor_names_and_shapes() for folder in (tiny_fp32, tiny_torch_layout))
    is_kernel = re.compile(r"conv|codec\.\w+coder\.layers\.\d+\.weight")
    kernels = [name for name in mlx if is_kernel.search(name) and len(mlx[name]) > 2]
    assert len(kernels) > 30
    assert all(mlx[name] != torch[name] for name in kernels)


def test_the_tokenizer_has_256_single_characters_and_its_special_tokens(tiny_fp32) -> None:
    vocabulary = TextTokenizer(tiny_fp32 / "tokenizer.json").vocabulary
    assert sum(len(token) == 1 for token in vocabulary) == 256
    expected = {0: "<unk>", 1: "<s>", 2: "</s>", 11: "<SPECIAL_11>", 12: "<SPECIAL_12>", 20: "<SPECIAL_20>"}
    assert {id: token for token, id in vocabulary.items() if id in expected} == expected


def test_pieces_are_distinct_at_every_size() -> None:
    assert all(len(set(rnnt_pieces(count))) == count for count in (10, 64, 1024))


def test_the_question_is_16_khz_mono_pcm16_speech() -> None:
    info = soundfile.info(QUESTION)
    assert (info.samplerate, info.channels, info.format, info.subtype) == (16000, 1, "WAV", "PCM_16")
    samples, _ = soundfile.read(QUESTION)
    assert 1.0 < info.duration < 3.0
    assert 0.02 < np.sqrt(np.mean(samples**2)) < 0.3 and np.abs(samples).max() < 1


def test_the_question_that_is_bundled_is_the_same() -> None:
    assert BUNDLED_QUESTION.read_bytes() == QUESTION.read_bytes()


# --- health: what each variant makes of the question ---


@pytest.fixture(scope="module", params=VARIANTS)
def answer(request, tiny_fp32, tiny_bf16, tiny_torch_layout, tiny_4bit) -> dict[str, np.ndarray]:
    folder = dict(zip(VARIANTS, (tiny_fp32, tiny_bf16, tiny_torch_layout, tiny_4bit), strict=True))[request.param]
    return trace(vc.load(folder, dtype="float32"), QUESTION, extra_decoding_seconds=1.0)


def test_text_and_function_ids_vary_and_eos_and_pad_occur(answer) -> None:
    text, function = answer["text.ids"], answer["function.ids"]
    assert len(text) >= 39
    assert len(set(text.tolist())) >= 10 and len(set(function.tolist())) >= 10
    assert np.mean(text[1:] != text[:-1]) > 0.3
    assert EOS in text and PAD in text


def test_the_transcript_branch_emits_on_several_frames_and_stops_by_itself(answer) -> None:
    emitted = Counter(answer["rnnt.frames"].tolist())
    assert len(emitted) >= 6 and sum(emitted.values()) >= 8
    assert sum(count == MAX_SYMBOLS for count in emitted.values()) <= len(emitted) / 3
    assert len(set(answer["rnnt.ids"].tolist())) >= 5


def test_codes_vary_and_control_codes_occur_and_are_replaced(answer) -> None:
    generated, heard = answer["tts.step_codes"], answer["tts.codes"]
    assert all(len(set(level)) >= 10 for level in generated.T.tolist())
    assert np.isin(generated, CONTROL_CODES).any(axis=0).mean() > 0.8  # of the levels
    assert not np.isin(heard, CONTROL_CODES).any()


def test_the_audio_is_neither_silent_nor_clipped(answer) -> None:
    audio = answer["codec.audio"]
    assert 0.01 < np.sqrt(np.mean(audio**2)) < 0.5
    assert np.mean(np.abs(audio) > 0.99) < 0.001


def test_everything_is_finite_and_of_ordinary_size(answer) -> None:
    for name, values in answer.items():
        assert np.isfinite(values).all(), name
        if name not in ("tts.step_codes", "tts.codes", "text.ids", "function.ids", "rnnt.ids", "rnnt.frames"):
            assert np.abs(values).max() < 100, name
