"""Kernels in torch's or MLX's order, told apart by the declared shape. Shapes are the published model's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from voicechat_mlx.config import CodecConfig
from voicechat_mlx.layout import KERNELS, fit_layout, transposed_convolutions

CONV2D = "perception.encoder.pre_encode.conv.3.weight"
DEPTHWISE2D = "perception.encoder.pre_encode.conv.2.weight"
CONV1D = "perception.encoder.layers.0.conv.pointwise_conv1.weight"
DEPTHWISE = "perception.encoder.layers.0.conv.depthwise_conv.weight"
MAMBA = "llm.layers.0.mixer.conv1d.weight"
STRIDED = "codec.encoder.layers.4.weight"
UPSAMPLING = "codec.decoder.layers.0.weight"
LAST = "codec.decoder.layers.12.weight"
BLOCK = "codec.decoder.layers.1.pwconv1.weight"

MLX_AND_TORCH = {
    CONV2D: ((256, 1, 1, 256), (256, 256, 1, 1)),
    DEPTHWISE2D: ((256, 3, 3, 1), (256, 1, 3, 3)),
    CONV1D: ((2048, 1, 1024), (2048, 1024, 1)),
    DEPTHWISE: ((1024, 9, 1), (1024, 1, 9)),
    MAMBA: ((12288, 4, 1), (12288, 1, 4)),
    STRIDED: ((768, 7, 384), (768, 384, 7)),
    UPSAMPLING: ((1536, 9, 512), (512, 1536, 9)),
    LAST: ((18, 1, 384), (18, 384, 1)),
    BLOCK: ((6144, 1, 1536), (6144, 1536, 1)),
}
TRANSPOSED = transposed_convolutions(CodecConfig())


def test_the_decoders_stage_starts_are_the_transposed_convolutions() -> None:
    # per stage one transposed convolution and three blocks
    assert {f"codec.decoder.layers.{index}.weight" for index in (0, 4, 8)} == TRANSPOSED


@pytest.mark.parametrize("name", MLX_AND_TORCH)
def test_a_kernel_in_mlx_order_is_kept(name) -> None:
    mlx, _ = MLX_AND_TORCH[name]
    assert fit_layout({name: mlx}, {name: mlx}, TRANSPOSED) == ({}, [])


@pytest.mark.parametrize("name", MLX_AND_TORCH)
def test_a_kernel_in_torch_order_gets_the_permutation_that_gives_the_declared_shape(name) -> None:
    mlx, torch_shape = MLX_AND_TORCH[name]
    permutations, problems = fit_layout({name: torch_shape}, {name: mlx}, TRANSPOSED)
    assert problems == []
    assert tuple(torch_shape[axis] for axis in permutations[name]) == mlx


def test_the_permutation_of_a_transposed_kernel_puts_torchs_axes_where_mlx_reads_them() -> None:
    # torch keeps [in, out, k], MLX [out, k, in]: entry (i, o, t) must move to (o, t, i)
    kernel = np.arange(2 * 3 * 5).reshape(torch.nn.ConvTranspose1d(2, 3, 5).weight.shape)
    moved = kernel.transpose(KERNELS["conv_transpose1d"])
    assert moved.shape == (3, 5, 2)
    assert moved[2, 4, 1] == kernel[1, 2, 4]


def test_any_other_shape_is_named_with_what_was_expected() -> None:
    _, problems = fit_layout({UPSAMPLING: (9, 512, 1536)}, {UPSAMPLING: (1536, 9, 512)}, TRANSPOSED)
    expected = "codec.decoder.layers.0.weight is (9, 512, 1536); expected (1536, 9, 512) or its torch layout"
    assert len(problems) == 1 and problems[0].endswith(expected)


def test_a_tensor_that_is_no_kernel_is_never_permuted() -> None:
    name = "talker.mog_head.low_mat"
    permutations, problems = fit_layout({name: (1024, 64, 512)}, {name: (1024, 512, 64)}, TRANSPOSED)
    assert permutations == {}
    assert problems == ["tts_model.tts_model.mog_head.low_mat is (1024, 64, 512); expected (1024, 512, 64)"]


AMBIGUOUS = {STRIDED: (14, 7, 7)}
"""Seven input channels, seven taps: both orders have this shape."""


def test_an_ambiguous_kernel_follows_the_decisive_kernels_of_its_network() -> None:
    mlx, torch_shape = MLX_AND_TORCH[BLOCK]
    elsewhere = {MAMBA: MLX_AND_TORCH[MAMBA][0]}
    declared = {**AMBIGUOUS, BLOCK: mlx, **elsewhere}
    as_mlx, _ = fit_layout({**AMBIGUOUS, BLOCK: mlx, **elsewhere}, declared, TRANSPOSED)
    as_torch, _ = fit_layout({**AMBIGUOUS, BLOCK: torch_shape, **elsewhere}, declared, TRANSPOSED)
    assert STRIDED not in as_mlx
    assert as_torch[STRIDED] == (0, 2, 1)


def test_an_ambiguous_kernel_alone_in_its_network_follows_the_other_networks() -> None:
    mlx, torch_shape = MLX_AND_TORCH[MAMBA]
    permutations, _ = fit_layout({**AMBIGUOUS, MAMBA: torch_shape}, {**AMBIGUOUS, MAMBA: mlx}, TRANSPOSED)
    assert permutations[STRIDED] == (0, 2, 1)


def test_an_ambiguous_kernel_alone_in_its_checkpoint_is_taken_as_it_is() -> None:
    assert fit_layout(AMBIGUOUS, AMBIGUOUS, TRANSPOSED) == ({}, [])


def test_an_ambiguous_kernel_among_mixed_ones_is_a_problem() -> None:
    found = {**AMBIGUOUS, BLOCK: MLX_AND_TORCH[BLOCK][0], LAST: MLX_AND_TORCH[LAST][1]}
    declared = {**AMBIGUOUS, BLOCK: MLX_AND_TORCH[BLOCK][0], LAST: MLX_AND_TORCH[LAST][0]}
    _, problems = fit_layout(found, declared, TRANSPOSED)
    assert len(problems) == 1 and STRIDED in problems[0] and "both layouts" in problems[0]


def test_a_kernel_whose_orders_differ_only_in_axes_of_length_one_needs_no_decision() -> None:
    # one input channel and one tap: the numbers lie the same way, so mixed neighbours do not matter
    found = {DEPTHWISE: (60, 1, 1), CONV1D: MLX_AND_TORCH[CONV1D][1], DEPTHWISE2D: MLX_AND_TORCH[DEPTHWISE2D][0]}
    declared = {DEPTHWISE: (60, 1, 1), CONV1D: MLX_AND_TORCH[CONV1D][0], DEPTHWISE2D: MLX_AND_TORCH[DEPTHWISE2D][0]}
    permutations, problems = fit_layout(found, declared, TRANSPOSED)
    assert problems == []
    assert DEPTHWISE not in permutations
