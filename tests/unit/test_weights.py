"""Filling a model from a checkpoint: strictly, and in either layout."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from tests.unit.loading import FLOAT32, loaded, refusal
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.model import VoiceChat
from voicechat_mlx.weights import canonical_name, load_weights, survey

FUNCTION_HEAD = "stt_model.function_head.weight"


def test_every_parameter_gets_the_tensor_of_its_name(tiny_fp32) -> None:
    tensors = Checkpoint.open(tiny_fp32).tensors()
    parameters = loaded(tiny_fp32)
    assert {canonical_name(name) for name in tensors} == parameters.keys()
    for name, tensor in tensors.items():
        assert mx.array_equal(parameters[canonical_name(name)], tensor), name


def test_both_layouts_give_the_same_parameters(tiny_fp32, tiny_torch_layout) -> None:
    from_mlx, from_torch = loaded(tiny_fp32), loaded(tiny_torch_layout)
    assert from_mlx.keys() == from_torch.keys()
    assert all(mx.array_equal(from_mlx[name], from_torch[name]) for name in from_mlx)


def test_loading_what_was_loaded_changes_nothing(tiny_torch_layout) -> None:
    once = loaded(tiny_torch_layout)
    twice = loaded(tiny_torch_layout, lambda tensors: (tensors.clear(), tensors.update(once)))
    assert all(mx.array_equal(once[name], twice[name]) for name in once)


def test_permuted_kernels_are_stored_in_the_order_in_which_they_are_read(tiny_torch_layout) -> None:
    kernel = loaded(tiny_torch_layout)["codec.decoder.layers.0.weight"]
    assert memoryview(kernel).c_contiguous


def test_the_report_tells_networks_and_what_was_left_out(tiny_torch_layout) -> None:
    checkpoint = Checkpoint.open(tiny_torch_layout)
    report = survey(VoiceChat(checkpoint.config), checkpoint.tensors(), checkpoint.config)
    assert set(report.networks) == {"perception", "rnnt", "llm", "talker", "codec"}
    assert set(report.not_needed) == {
        "stt_model.perception.preprocessor.featurizer.window",
        "stt_model.perception.preprocessor.featurizer.fb",
        "tts_model.tts_model.audio_prompt_projection_W",
    }
    # prediction: 65 · 36 and 2 · (2 · 144 · 36 + 2 · 144); joint: 44 · 60 + 44 + 44 · 36 + 44 + 65 · 44 + 65
    assert report.networks["rnnt"].parameters == 2340 + 21312 + 7237
    assert report.networks["rnnt"].bytes == 4 * report.networks["rnnt"].parameters


def test_a_renamed_tensor_is_one_missing_and_one_unexpected(tiny_fp32) -> None:
    def rename(tensors) -> None:
        tensors["stt_model.funktion_head.weight"] = tensors.pop(FUNCTION_HEAD)

    message = refusal(tiny_fp32, rename)
    assert f"1 tensor is missing: {FUNCTION_HEAD}" in message
    assert "1 tensor is unexpected: stt_model.funktion_head.weight" in message


@pytest.mark.parametrize("name", [FUNCTION_HEAD, "tts_model._control_codes", "tts_model.tts_model.null_emb"])
def test_a_dropped_tensor_is_named(tiny_fp32, name) -> None:
    assert f"1 tensor is missing: {name}" in refusal(tiny_fp32, lambda tensors: tensors.pop(name))


def test_an_added_tensor_is_named(tiny_fp32) -> None:
    message = refusal(tiny_fp32, lambda tensors: tensors.update({"tts_model.tts_model.extra": mx.ones(3)}))
    assert "1 tensor is unexpected: tts_model.tts_model.extra" in message


def test_swapped_tensors_are_both_named_with_the_shape_they_should_have(tiny_fp32) -> None:
    up, down = (f"stt_model.llm.layers.1.mixer.{side}_proj.weight" for side in ("up", "down"))

    def swap(tensors) -> None:
        tensors[up], tensors[down] = tensors[down], tensors[up]

    message = refusal(tiny_fp32, swap)
    assert f"{up} is (64, 320); expected (320, 64)" in message
    assert f"{down} is (320, 64); expected (64, 320)" in message


def test_many_missing_tensors_are_counted_and_the_first_eight_named(tiny_fp32) -> None:
    message = refusal(tiny_fp32, lambda tensors: [tensors.pop(name) for name in sorted(tensors)[:20]])
    named = message.split("missing: ")[1]
    assert message.startswith("20 tensors are missing: ")
    assert named.count("stt_model.") == 8 and named.endswith("…")


def test_the_same_tensor_under_two_spellings_is_refused(tiny_fp32) -> None:
    old, new = (f"tts_model.audio_codec.prvq.{list_}.0.variance" for list_ in ("_variance_list", "variance_list"))
    message = refusal(tiny_fp32, lambda tensors: tensors.update({old: tensors[new]}))
    assert "codec.prvq.variance_list.0.variance" in message


def test_integers_where_numbers_are_expected_and_the_other_way_round_are_refused(tiny_fp32) -> None:
    change = {FUNCTION_HEAD: mx.ones((389, 64), mx.int32), "tts_model._control_codes": mx.ones(3)}
    message = refusal(tiny_fp32, lambda tensors: tensors.update(change))
    assert f"{FUNCTION_HEAD} holds int32; expected floating point numbers" in message
    assert "tts_model._control_codes holds float32; expected integers" in message


def test_flag_tables_keep_the_length_that_the_checkpoint_gives_them(tiny_fp32) -> None:
    root = "embed_subword.subword_flag_emb.is_continuation"
    longer = {f"tts_model.tts_model.{root}": mx.ones(1000, mx.int64)}
    table = loaded(tiny_fp32, lambda tensors: tensors.update(longer))[f"talker.{root}"]
    assert (table.shape, table.dtype) == ((1000,), mx.int32)


def test_loading_empties_the_mapping_so_that_no_tensor_is_held_twice(tiny_bf16) -> None:
    checkpoint = Checkpoint.open(tiny_bf16)
    tensors, model = checkpoint.tensors(), VoiceChat(checkpoint.config)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    load_weights(model, tensors, checkpoint.config, precision=FLOAT32)
    held = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    largest = max(array.nbytes for _, array in tree_flatten(model.parameters()))
    assert tensors == {}
    # beside what the model holds: one tensor as stored, and its absolute values while it is checked
    assert mx.get_peak_memory() - before <= held + 3 * largest


# --- index tables: MLX does not check an index, so a wrong one would end the process ---

CONTINUATION, SPECIAL = (
    f"tts_model.tts_model.embed_subword.{name}"
    for name in ("subword_flag_emb.is_continuation", "bos_eos_emb.special_flags")
)
SILENCE = "tts_model.codec_silence_tokens"


def pad_of(table: str) -> str:
    return f"{table.rpartition('.')[0]}.pad_tensor"


@pytest.mark.parametrize("value", [-1, 10**9, 2**32 + 1, "limit"])
@pytest.mark.parametrize(
    ("name", "shape", "limit"),
    [
        (SILENCE, (31,), 29),  # codes
        (CONTINUATION, (390,), 2),  # rows of cont_emb
        (SPECIAL, (389,), 3),  # rows of special_emb
        (pad_of(CONTINUATION), (), 390),  # entries of its table
        (pad_of(SPECIAL), (), 389),
    ],
)
def test_an_index_that_leads_beyond_its_table_is_refused(tiny_fp32, name, shape, limit, value) -> None:
    value = limit if value == "limit" else value
    table = mx.zeros(shape, mx.int64)
    if shape:
        table[-1] = value
    else:
        table = mx.array(value, mx.int64)
    message = refusal(tiny_fp32, lambda tensors: tensors.update({name: table}))
    assert message == f"{name} holds {value}; expected 0 to {limit - 1}"


@pytest.mark.parametrize("name", [CONTINUATION, SPECIAL])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (388,), (389, 1), (1, 390)])
def test_a_flag_table_has_an_entry_for_every_id_along_one_axis(tiny_fp32, name, shape) -> None:
    message = refusal(tiny_fp32, lambda tensors: tensors.update({name: mx.zeros(shape, mx.int64)}))
    assert message == f"{name} is {shape}; expected one axis of 389 entries (vocab_size) or more"


def test_control_codes_may_be_any_integers(tiny_fp32) -> None:
    codes = mx.array([-5, 10**6, 3], mx.int64)
    loaded(tiny_fp32, lambda tensors: tensors.update({"tts_model._control_codes": codes}))
