"""Two wrapped optimizers in one training."""

import copy

import pytest
import torch
from torch import Tensor, nn, optim

from tests.training.small_training import (
    F64,
    STATIC,
    Net,
    Twin,
    adam,
    assert_same,
    batches,
    constrained,
    measure,
    multipliers,
    registry,
    static,
)
from tests.training.test_models import logits_loss
from torch_powalm import ConstraintRegistry

# Two optimizers


def test_two_optimizers_own_their_blocks_of_one_registry():
    ours, theirs = Net(), Net()
    constraints = registry(ours, batch=False)
    constraints.equality("balance", size=1)

    def bases(model):
        return [
            optim.Adam([model.first.weight], lr=0.02),
            optim.SGD([model.second.weight], lr=0.02, momentum=0.9),
        ]

    first, second = bases(ours)
    optimizers = [
        constrained(first, constraints, owns=["unit_rows"], nu=0.7),
        constrained(second, constraints, owns=["balance", "budget"], nu=0.5),
    ]
    twins, plain = [Twin(STATIC[:5], 0.7), Twin([True, False], 0.5)], bases(theirs)
    for _ in range(3):
        total = torch.zeros(1, dtype=F64)
        for x, target in batches():
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss, values = measure(ours, x, target)
            optimizers[1].augment(loss, balance=values["balance"]).backward()
            for optimizer in optimizers:
                optimizer.step()

            for optimizer in plain:
                optimizer.zero_grad()
            loss, values = measure(theirs, x, target)
            # Each block acts on the parameters of its owner alone; batch blocks act on all.
            balance = values["balance"].reshape(1)
            A = static(theirs)
            pair = torch.cat([A[5:], balance])
            (loss + twins[0].value(A[:5]) + twins[1].value(pair)).backward()
            for optimizer in plain:
                optimizer.step()
            total += balance.detach()
        for optimizer in optimizers:
            optimizer.update_multipliers()
        A = static(theirs).detach()
        twins[0].update(A[:5])
        twins[1].update(torch.cat([A[5:], total / 3]))
    assert_same(ours, theirs)
    for optimizer, twin in zip(optimizers, twins, strict=True):
        assert_same(multipliers(optimizer), twin.y)
    assert set(constraints.violations()) == {"unit_rows", "budget", "balance"}


def test_an_unknown_name_in_owns_raises_at_the_first_step():
    model = Net()
    optimizer = constrained(adam(model), registry(model), owns=["unit_rows", "budgets"])
    with pytest.raises(KeyError, match="owns must have registered constraints only, got 'budgets'"):
        optimizer.step()


class Game(nn.Module):
    """A generator of points and a discriminator of bounded slope."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(2, 3, bias=False, dtype=F64)
        self.discriminator = nn.Linear(3, 1, bias=False, dtype=F64)
        with torch.no_grad():
            self.generator.weight.copy_(torch.tensor([[0.4, -0.8], [0.9, 0.1], [-0.5, 0.7]]))
            self.discriminator.weight.copy_(torch.tensor([[1.5, -0.5, 0.9]]))

    def slope(self) -> Tensor:
        return self.discriminator.weight.square().sum().reshape(1) - 1

    def spread(self, noise: Tensor) -> Tensor:
        return self.generator(noise).square().mean(0) - 0.5


def test_a_game_of_two_optimizers_equals_two_full_lagrangians():
    """As a GAN: each player has its own constraint, and its backward fills the other's .grad."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(6, 8, 2, generator=generator, dtype=F64)
    real = torch.randn(6, 8, 3, generator=generator, dtype=F64)
    ours, theirs = Game(), Game()
    slope, spread = ConstraintRegistry(), ConstraintRegistry()
    slope.inequality("slope", ours.slope)
    spread.equality("spread", size=3)
    critic = constrained(adam(ours.discriminator), slope, nu=0.7)
    artist = constrained(adam(ours.generator), spread, nu=0.7)
    plain_critic, plain_artist = adam(theirs.discriminator), adam(theirs.generator)
    twin_slope, twin_spread = Twin([True], 0.7), Twin([False] * 3, 0.7)

    def critic_loss(game, z, x):
        gap = game.discriminator(game.generator(z).detach()).mean() - game.discriminator(x).mean()
        return gap + 0.1 * game.discriminator.weight.square().sum()

    def artist_loss(game, z):
        return -game.discriminator(game.generator(z)).mean()

    for _ in range(2):
        total = torch.zeros(3, dtype=F64)
        for z, x in zip(noise, real, strict=True):
            critic.zero_grad()
            critic_loss(ours, z, x).backward()
            critic.step()
            artist.zero_grad()
            artist.augment(artist_loss(ours, z), spread=ours.spread(z)).backward()
            artist.step()

            plain_critic.zero_grad()
            (critic_loss(theirs, z, x) + twin_slope.value(theirs.slope())).backward()
            plain_critic.step()
            plain_artist.zero_grad()
            value = theirs.spread(z)
            (artist_loss(theirs, z) + twin_spread.value(value)).backward()
            plain_artist.step()
            total += value.detach() / len(noise)
        critic.update_multipliers()
        artist.update_multipliers()
        twin_slope.update(theirs.slope())
        twin_spread.update(total)
    assert_same(ours, theirs)
    assert_same(multipliers(critic), twin_slope.y)
    assert_same(multipliers(artist), twin_spread.y)


def test_two_copies_of_a_pair_of_optimizers_keep_their_owners():
    model = Net()
    constraints = registry(model, batch=False)
    optimizers = [
        constrained(optim.SGD([model.first.weight], 0.1), constraints, owns=["unit_rows"]),
        constrained(optim.SGD([model.second.weight], 0.1), constraints, owns=["budget"]),
    ]

    def step(net, pair):
        for optimizer in pair:
            optimizer.zero_grad()
        logits_loss(net).backward()
        for optimizer in pair:
            optimizer.step()

    step(model, optimizers)
    model_2, optimizers_2 = copy.deepcopy((model, optimizers))
    step(model, optimizers)
    step(model_2, optimizers_2)
    assert_same(model, model_2)
    assert optimizers_2[0].constraints is optimizers_2[1].constraints
