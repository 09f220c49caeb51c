from __future__ import annotations

import torch

from reference.model import VoiceChat
from reference.offline import no_draws, speak, voice_prompt
from reference.training.mixture import mixture_loss
from reference.training.options import SETTINGS, read_settings
from reference.training.rollout import Conditions, Rollout, VoicePrompt
from reference.training.talker import TalkerSettings, TalkerTraining
from reference.training.talker_rows import TalkerRows
from reference.training.vocabularies import BOS, EOS, PAD
from voicechat_mlx.conventions import MLX


def some_text(steps: int) -> torch.Tensor:
    """(2, steps): silence, BOS, words, EOS; and the same later."""
    text = torch.full((2, steps), PAD)
    for row, first in enumerate((4, 9)):
        text[row, first : first + 6] = torch.tensor([BOS, 300, 310, PAD, 305, EOS])
    return text


def test_rollouts_give_the_codes_of_the_whole_loop(model: VoiceChat) -> None:
    text = some_text(26)
    ours = Rollout(model, rows=2, frames=26, graphs=False).generate(text)
    for row in range(2):
        timeline = torch.cat([torch.tensor([[PAD]]), text[row : row + 1]], dim=1)
        expected = speak(model, timeline, MLX, no_draws(model))["tts.step_codes"]
        assert len({tuple(code) for code in expected.tolist()}) > 5
        torch.testing.assert_close(ours[row], expected)


def test_the_voice_prompt_is_the_one_of_the_whole_loop(model: VoiceChat) -> None:
    codes, heard, cond = voice_prompt(model, MLX)
    prompt, conditions = VoicePrompt(model), Conditions(model)
    torch.testing.assert_close(prompt.heard(), heard)
    torch.testing.assert_close(conditions.of(conditions.spelled(), prompt.text, prompt.mask), cond)
    torch.testing.assert_close(prompt.codes[:, -2:], codes[:, -2:])


def test_training_hears_what_the_loop_hears(model: VoiceChat) -> None:
    """Given the loop's own codes as the past, training's hidden states are those of the loop."""
    text = some_text(18)[:1]
    timeline = torch.cat([torch.tensor([[PAD]]), text], dim=1)
    traces = speak(model, timeline, MLX, no_draws(model))
    settings = read_settings(TalkerSettings, SETTINGS / "smoke" / "talker.toml")
    exact = TalkerSettings(**vars(settings) | {"dropped": 0.0, "without_text": 0.0})
    rows = TalkerRows(text, torch.zeros(1, 18, 31, dtype=torch.int64), torch.ones(1, 18))
    training = TalkerTraining(model, rows, exact)
    hidden = training.hidden(text, traces["tts.step_codes"].unsqueeze(0))
    torch.testing.assert_close(hidden[0], traces["tts.hidden"][0], rtol=1e-4, atol=1e-4)


def test_the_mixture_loss_is_made_of_gaussian_densities(model: VoiceChat) -> None:
    head = model.talker.mog_head
    x, target = torch.randn(3, 64), torch.randn(3, 32)
    trunk = head(x)
    fit, choice = mixture_loss(head, trunk, target, smoothing=0.1)
    components = head.low_mat.shape[0]
    log_density = torch.stack(
        [
            torch.distributions.Normal(
                head.mean(trunk, torch.full((3,), k)), torch.exp(head.log_std(trunk)).expand(-1, 32)
            )
            .log_prob(target)
            .sum(-1)
            for k in range(components)
        ],
        dim=1,
    )
    responsible = log_density.softmax(1) * 0.9 + 0.1 / components
    torch.testing.assert_close(fit, -(responsible * log_density).sum(1), rtol=1e-4, atol=1e-3)
    weights = head.proj_logits(trunk).log_softmax(1)
    divergence = (responsible * (responsible.log() - weights)).sum(1)
    torch.testing.assert_close(choice, divergence, rtol=1e-4, atol=1e-4)
