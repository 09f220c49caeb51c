"""What a checkpoint needs, what the machine has, and the refusal when the first is more than the second."""

from __future__ import annotations

import subprocess
import sys

import mlx.core as mx
import pytest

from voicechat_mlx import memory
from voicechat_mlx.checkpoint import Checkpoint
from voicechat_mlx.config import VoiceChatConfig
from voicechat_mlx.errors import CheckpointError
from voicechat_mlx.memory import Memory, in_words, machine_memory, memory_needed, require_fit, require_memory
from voicechat_mlx.precision import precision

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    """Sets what the machine has, and what its container may use."""

    def set_memory(size: int, *limits: str) -> None:
        pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": size // 4096}
        monkeypatch.setattr(memory.os, "sysconf", pages.__getitem__)
        monkeypatch.setattr(memory, "LIMIT_FILES", limits)

    return set_memory


def as_gpu(monkeypatch, **info: int) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.DeviceType.gpu, 0))
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "a GPU", **info})


# What is needed


def test_memory_of_the_published_model_follows_from_its_sizes() -> None:
    # 4 attention layers × (key, value) × 8 heads × 128, and 28 talker layers × (key, value) × 16 heads × 72 × 2 rows,
    # in 4 bytes, 12.5 frames a second: (8192 + 129024) · 4 · 750
    needed = memory_needed(VoiceChatConfig(), {}, precision("float32"))
    assert needed == Memory(weights=0, per_minute=411_648_000)


def test_weights_are_counted_in_the_precision_they_are_cast_to() -> None:
    tensors = {
        "stt_model.lm_head.weight": mx.zeros((4, 8), mx.bfloat16),
        "stt_model.embed_tokens.weight": mx.zeros((4, 1), mx.uint32),  # packed: stays
        "stt_model.llm.layers.0.mixer.A_log": mx.zeros(6, mx.bfloat16),  # float32 always
        "tts_model._control_codes": mx.zeros(3, mx.int64),  # int32 always
        "stt_model.perception.preprocessor.featurizer.window": mx.zeros(400),  # not needed
    }
    found = [memory_needed(VoiceChatConfig(), tensors, precision(name)).weights for name in ("float32", "bfloat16")]
    assert found == [32 * 4 + 4 * 4 + 6 * 4 + 3 * 4, 32 * 2 + 4 * 4 + 6 * 4 + 3 * 4]


def test_room_to_work_in_is_whole_from_a_gigabyte_on_and_proportional_below() -> None:
    assert Memory(weights=9_000_000_000, per_minute=400_000_000).to_start == 10_900_000_000
    assert Memory(weights=2_000_000, per_minute=1_000_000).to_start == 2_000_000 + 1_000_000 + 3_000_000


# What is there


def test_the_machine_has_its_pages(machine) -> None:
    machine(16 * GIB)
    assert machine_memory() == 16 * GIB


@pytest.mark.parametrize(
    ("limit", "expected"), [(f"{2 * GIB}\n", 2 * GIB), ("max\n", 16 * GIB), ("99999999999999", 16 * GIB)]
)
def test_a_container_may_use_what_its_control_group_allows(machine, tmp_path, limit, expected) -> None:
    (tmp_path / "memory.max").write_text(limit, encoding="ascii")
    machine(16 * GIB, str(tmp_path / "none"), str(tmp_path / "memory.max"))
    assert machine_memory() == expected


def test_a_card_has_its_own_memory_whatever_the_machine_has(machine, monkeypatch) -> None:
    machine(8 * GIB)
    as_gpu(monkeypatch, total_memory=80 * GIB, free_memory=70 * GIB)
    assert machine_memory() == 80 * GIB


def test_a_gpu_that_shares_memory_may_use_the_recommended_part(machine, monkeypatch) -> None:
    machine(16 * GIB)
    as_gpu(monkeypatch, memory_size=16 * GIB, max_recommended_working_set_size=11 * GIB)
    assert machine_memory() == 11 * GIB


def test_this_machine_has_some() -> None:
    assert GIB < machine_memory() < 1 << 50


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_was_freed_between_things_still_held_goes_back_to_the_system() -> None:
    """Pieces of 64 kB, every second one freed: the heap cannot shrink at its end."""
    code = """
import os
from voicechat_mlx.memory import give_back_freed
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
held = [bytearray(os.urandom(1 << 16)) for _ in range(1600)]
held = held[::2]
before = resident()
give_back_freed()
assert before - resident() > 30_000_000, (before, resident())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_c_library_without_the_call_is_no_failure(monkeypatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    memory.give_back_freed()


# The refusal


def test_what_does_not_fit_is_refused_with_the_figures_and_the_ways_out(machine, tiny_bf16) -> None:
    checkpoint = Checkpoint.open(tiny_bf16)
    tensors = checkpoint.tensors()
    needed = {name: memory_needed(checkpoint.config, tensors, precision(name)) for name in ("float32", "bfloat16")}
    machine(4096 * 256)
    with pytest.raises(CheckpointError) as error:
        require_fit(checkpoint.config, tensors, "float32", name="models/11b")
    message = str(error.value)
    assert message.startswith(f"models/11b at --dtype float32, with {in_words(needed['float32'].weights)} of weights, ")
    assert f"needs {in_words(needed['float32'].to_start)} of memory and there is 1.05 MB; " in message
    assert f"--dtype bfloat16 needs {in_words(needed['bfloat16'].to_start)}, " in message
    assert message.endswith("`voicechat convert --bits 4` makes a smaller checkpoint, --force tries all the same")


def test_the_leanest_choice_is_not_advised_against_itself(machine, tiny_bf16) -> None:
    checkpoint = Checkpoint.open(tiny_bf16)
    machine(4096)
    with pytest.raises(CheckpointError) as error:
        require_fit(checkpoint.config, checkpoint.tensors(), "bfloat16", name="a")
    assert "--dtype bfloat16 needs" not in str(error.value)


def test_force_and_enough_memory_go_on(machine, tiny_bf16) -> None:
    checkpoint = Checkpoint.open(tiny_bf16)
    machine(4096)
    require_fit(checkpoint.config, checkpoint.tensors(), "float32", name="a", force=True)
    machine(GIB)
    require_fit(checkpoint.config, checkpoint.tensors(), "float32", name="a")
    require_memory(GIB, "exactly as much")


def test_no_tensor_is_read_to_find_out(machine, tiny_fp32) -> None:
    checkpoint = Checkpoint.open(tiny_fp32)
    tensors = checkpoint.tensors()
    before = mx.get_active_memory()
    require_fit(checkpoint.config, tensors, "float32", name="a")
    assert mx.get_active_memory() == before


def test_sizes_are_in_gigabytes_from_one_on() -> None:
    assert [in_words(size) for size in (9_234_000_000, 1_000_000_000, 2_350_000, 0)] == [
        "9.23 GB",
        "1.00 GB",
        "2.35 MB",
        "0.00 MB",
    ]
