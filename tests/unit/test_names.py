"""Published names and canonical names: the errata's list, spelt out by hand."""

from __future__ import annotations

import pytest

from voicechat_mlx.names import canonical_name, network_of, published_name

PUBLISHED_CANONICAL_NETWORK = [
    ("stt_model.embed_tokens.weight", "embed_tokens.weight", "llm"),
    ("stt_model.lm_head.scales", "lm_head.scales", "llm"),
    ("stt_model.function_head.weight", "function_head.weight", "llm"),
    ("stt_model.llm.layers.3.mixer.A_log", "llm.layers.3.mixer.A_log", "llm"),
    ("stt_model.perception.proj.bias", "perception.proj.bias", "perception"),
    ("stt_model.perception.encoder.layers.1.conv.batch_norm.bias", None, "perception"),
    ("stt_model.rnnt_decoder.prediction.dec_rnn.lstm.weight_ih_l0", None, "rnnt"),
    ("stt_model.rnnt_joint.joint_net.2.weight", "rnnt_joint.joint_net.2.weight", "rnnt"),
    ("tts_model._control_codes", "control_codes", "codec"),
    ("tts_model.codec_silence_tokens", "codec_silence_tokens", "codec"),
    ("tts_model.audio_prompt_latents.Aria", "audio_prompt_latent", "talker"),
    ("tts_model.tts_model.rvq_embs", "talker.rvq_embs", "talker"),
    ("tts_model.tts_model.embed_subword.bos_eos_emb.special_flags", None, "talker"),
    ("tts_model.audio_codec.decoder.layers.0.weight", "codec.decoder.layers.0.weight", "codec"),
    ("tts_model.audio_codec.prvq.mus_list.30", "codec.prvq.mus_list.30", "codec"),
    ("tts_model.audio_codec.prvq.variance_list.7.variance", "codec.prvq.variance_list.7.variance", "codec"),
]


@pytest.mark.parametrize(("published", "canonical", "network"), PUBLISHED_CANONICAL_NETWORK)
def test_a_published_name_has_one_canonical_name_and_comes_back_from_it(published, canonical, network) -> None:
    if canonical is None:  # only the first part changes
        canonical = published.removeprefix("stt_model.").replace("tts_model.tts_model.", "talker.")
    assert canonical_name(published) == canonical
    assert published_name(canonical) == published
    assert network_of(canonical) == network


@pytest.mark.parametrize(("published", "canonical", "network"), PUBLISHED_CANONICAL_NETWORK)
def test_renaming_twice_changes_nothing(published, canonical, network) -> None:
    once = canonical_name(published)
    assert canonical_name(once) == once


def test_both_spellings_of_the_variance_list_mean_the_same() -> None:
    for spelling in ("variance_list", "_variance_list"):
        published = f"tts_model.audio_codec.prvq.{spelling}.4.variance"
        assert canonical_name(published) == "codec.prvq.variance_list.4.variance"


@pytest.mark.parametrize(
    "name",
    [
        "stt_model.perception.preprocessor.featurizer.window",
        "stt_model.perception.preprocessor.featurizer.fb",
        "tts_model.tts_model.audio_prompt_projection_W",
    ],
)
def test_what_is_not_needed_has_no_canonical_name(name) -> None:
    assert canonical_name(name) is None


def test_module_paths_are_renamed_like_the_tensors_in_them() -> None:
    assert canonical_name("stt_model.llm.layers.0.mixer.in_proj") == "llm.layers.0.mixer.in_proj"


def test_the_latents_of_another_speaker_keep_their_name_and_so_are_unexpected() -> None:
    assert canonical_name("tts_model.audio_prompt_latents.Bob") == "tts_model.audio_prompt_latents.Bob"
