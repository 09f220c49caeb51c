from __future__ import annotations

import itertools

import torch
from torch import Tensor

from reference.training.rnnt_loss import lattice_scores, path_loss, rnnt_loss


def brute_force(blank: Tensor, emit: Tensor, pieces: int) -> Tensor:
    """The sum over every way to place `pieces` emissions on the frames."""
    frames = blank.shape[0]
    scores = []
    for places in itertools.combinations_with_replacement(range(frames), pieces):
        score = torch.zeros((), dtype=torch.float64)
        for u, t in enumerate(places):
            score = score + emit[t, u]
        for t in range(frames):
            score = score + blank[t, sum(place <= t for place in places)]
        scores.append(score)
    return -torch.logsumexp(torch.stack(scores), dim=0)


def random_scores(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 5, 5, 7, generator=generator, dtype=torch.float64) * 2
    pieces = torch.randint(6, (3, 4), generator=generator)
    return (*lattice_scores(logits, pieces, blank=6), torch.tensor([4, 2, 0]))


def test_the_loss_is_the_sum_over_all_alignments() -> None:
    blank, emit, lengths = random_scores(0)
    expected = [brute_force(blank[b], emit[b], int(n)) for b, n in enumerate(lengths)]
    torch.testing.assert_close(rnnt_loss(blank, emit, lengths), torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_the_gradients_are_those_of_the_sum_over_all_alignments() -> None:
    blank, emit, lengths = random_scores(1)
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    results = []
    for function in (
        rnnt_loss,
        lambda b, e, n: torch.stack([brute_force(b[i], e[i], int(k)) for i, k in enumerate(n)]),
    ):
        leaves = [x.detach().clone().requires_grad_() for x in (blank, emit)]
        (function(*leaves, lengths) * weights).sum().backward()
        results.append([leaf.grad for leaf in leaves])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_scores_are_log_probabilities_of_blank_and_of_the_next_piece() -> None:
    logits = torch.randn(1, 2, 3, 4)
    pieces = torch.tensor([[2, 0]])
    blank, emit = lattice_scores(logits, pieces, blank=3)
    table = logits.log_softmax(-1)
    torch.testing.assert_close(blank, table[..., 3])
    torch.testing.assert_close(emit[0, :, 0], table[0, :, 0, 2])
    torch.testing.assert_close(emit[0, :, 1], table[0, :, 1, 0])


def test_a_single_alignment_is_scored_along_its_path() -> None:
    blank, emit, _ = random_scores(2)
    frames, lengths = torch.tensor([[1, 1, 4, 0]]), torch.tensor([3])
    path = emit[0, 1, 0] + emit[0, 1, 1] + emit[0, 4, 2]
    path = path + blank[0, 0, 0] + blank[0, 1, 2] + blank[0, 2, 2] + blank[0, 3, 2] + blank[0, 4, 3]
    torch.testing.assert_close(path_loss(blank[:1], emit[:1], lengths, frames), -path.reshape(1) / 8)
