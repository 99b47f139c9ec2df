"""The forms on token ids, one by one: what they recover, and when they refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit._runner import Clock
from privaudit._token_runner import TokenClient, run_tokens
from privaudit.attacks import TokenAttack, TokenClosedForm
from privaudit.config import Budget
from privaudit.exposure import GradientExposure
from privaudit.types import LeakedIds, TokenBatch, TokenReconstruction, TokenTarget
from tests.models.text import SmallText, Text, flat, text

SENTENCE = torch.tensor([[32, 34, 22, 18, 34, 58, 57, 46]])


def attack(
    model: nn.Module,
    ids: Tensor = SENTENCE,
    labels: Tensor | None = None,
    given: TokenAttack | None = None,
    noise: float = 0.0,
    **exposure: Any,
) -> TokenReconstruction:
    """One client's step, attacked as the audit does; claims are checked."""
    made = GradientExposure(Normalisation(), **exposure)
    labels = torch.arange(len(ids)) % 3 if labels is None else labels
    batch = TokenBatch(ids, labels, torch.ones_like(ids, dtype=torch.bool))
    step = made.observe(model, batch, seed=0)
    for value in step.observation.gradients.values():
        value += noise * torch.randn(value.shape, generator=torch.Generator())
    client = TokenClient(batch, lambda: step, range(len(ids)))
    ran = run_tokens(
        given or TokenClosedForm(),
        TokenTarget(model, made, labels),
        [client],
        clock=Clock(Budget(seconds=60)),
        seed=0,
    )
    return ran.outcomes[0]


def reason(found: TokenReconstruction, form: str) -> str:
    return next(f.reason for f in found.forms if f.form == form)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("before_norm", [True, False])
def test_a_position_embedding_gives_the_order(
    dropout: float, before_norm: bool
) -> None:
    found = attack(text(Text(dropout=dropout, before_norm=before_norm)))
    assert found.state == "exact"
    assert found.form == "position embedding"
    assert found.sequence is not None
    assert torch.equal(found.sequence, SENTENCE)


def test_without_positions_only_the_set_shows() -> None:
    found = attack(text(Text(positions=False)))
    assert found.state == "plateau"
    assert found.sequence is None
    assert found.leaked is not None
    assert found.leaked[0].ids == tuple(sorted(set(SENTENCE.flatten().tolist())))


def test_more_positions_than_equations_place_what_stands_once() -> None:
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e, self.p = nn.Embedding(50, 4), nn.Embedding(8, 4)
            self.mix, self.o = nn.Conv1d(4, 4, 3, padding=1), nn.Linear(4, 3)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.e(ids) + self.p(torch.arange(ids.shape[1]))
            out: Tensor = self.o(self.mix(x.transpose(1, 2)).tanh().mean(2))
            return out

    torch.manual_seed(0)
    ids = torch.tensor([[3, 9, 9, 12, 4, 40, 1, 30]])
    found = attack(Narrow(), ids)
    assert found.state == "plateau"
    assert found.sequence is not None
    assert found.sequence[0].tolist() == [3, -1, -1, 12, 4, 40, 1, 30]
    assert "span 4 of 4" in reason(found, "position embedding")


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_both_uses_of_a_tied_weight_are_told_apart(dropout: float) -> None:
    found = attack(text(Text(tied=True, dropout=dropout)))
    assert found.state == "exact"
    assert found.form == "position embedding, output layer tied"
    assert found.sequence is not None
    assert torch.equal(found.sequence, SENTENCE)
    assert "tied to another layer" in reason(found, "rows of the embedding's gradient")
    assert found.leaked is not None
    assert found.leaked[0].ids == tuple(sorted(set(SENTENCE.flatten().tolist())))


def test_a_tied_weight_is_never_read_as_the_whole_vocabulary() -> None:
    model = text(Text(tied=True, dropout=0.3))
    two = torch.cat([SENTENCE, SENTENCE.flip(1)])
    found = attack(model, two)
    assert sum(len(leak.ids) for leak in found.leaked or ()) <= two.numel()


def test_a_frozen_embedding_is_read_from_the_first_projection() -> None:
    found = attack(text(Text(frozen=True)))
    assert found.state == "exact"
    assert found.form == "row space of the first projection"
    assert found.sequence is not None
    assert torch.equal(found.sequence, SENTENCE)


def test_dropout_before_the_projection_hides_it_and_this_is_said() -> None:
    found = attack(text(Text(frozen=True, dropout=0.3)))
    assert found.state == "skipped"
    assert "dropout acts" in reason(found, "row space of the first projection")


def test_the_row_space_shows_a_set_where_positions_look_alike() -> None:
    found = attack(text(Text(positions=False, tied=True)))
    assert found.leaked is not None
    assert found.leaked[0].ids == tuple(sorted(set(SENTENCE.flatten().tolist())))
    assert found.sequence is None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_flattened_embedding(bias: bool, dropout: float, sparse: bool) -> None:
    ids = torch.tensor([[46, 2, 38, 2, 27]])
    found = attack(flat(bias=bias, dropout=dropout, sparse=sparse), ids)
    assert found.state == "exact", found.reason
    assert found.sequence is not None
    assert torch.equal(found.sequence, ids)


def test_noise_is_no_leak_of_the_whole_vocabulary() -> None:
    found = attack(flat(), torch.tensor([[46, 2, 38, 2, 27]]), noise=1e-2)
    held = {46, 2, 38, 27}
    assert all(set(leak.ids) <= held for leak in found.leaked or ())
    assert "more than the 5 ids" in reason(found, "rows of the embedding's gradient")


def test_rows_stand_out_of_a_language_models_tied_weight() -> None:
    class Language(SmallText):
        def forward(self, input_ids: Tensor, attention_mask: Any = None) -> Tensor:
            x = self.e(input_ids)
            out: Tensor = self.o(self.encoder(self.drop(x))).transpose(1, 2)
            return out

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Language(Text(tied=True, dropout=0.1, positions=False))
        nn.init.normal_(model.e.weight, std=0.02)
    made = GradientExposure(Normalisation())
    batch = TokenBatch(SENTENCE, SENTENCE.roll(-1, 1), SENTENCE > 0)
    step = made.observe(model, batch, seed=0)
    target = TokenTarget(model, made, language=True)
    found = TokenClosedForm().run(
        target, step.observation, budget=Budget(), generator=torch.Generator()
    )
    assert found.form == "rows that stand out"
    assert found.leaked is not None
    assert found.leaked[0].ids == tuple(sorted(set(SENTENCE.flatten().tolist())))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_bag_gives_its_set(mode: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bag = nn.EmbeddingBag(60, 8, mode=mode, padding_idx=0)
        model = nn.Sequential(bag, nn.Linear(8, 3))
    found = attack(model)
    assert found.leaked is not None
    assert found.leaked[0].ids == tuple(sorted(set(SENTENCE.flatten().tolist())))
    assert not any("broke off" in f.reason for f in found.forms)


def test_a_form_that_breaks_is_listed_and_hides_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(scene: Any) -> Any:
        raise ValueError("no such thing")

    module = "privaudit.attacks.token_closed_form"
    monkeypatch.setattr(f"{module}._ORDER", (broken,))
    found = attack(text())
    assert found.leaked is not None
    assert found.leaked[0].ids == tuple(sorted(set(SENTENCE.flatten().tolist())))
    assert "broke off: ValueError: no such thing" in reason(found, "broken")


def test_time_that_is_up_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    late = SimpleNamespace(monotonic=lambda: float("inf"))
    monkeypatch.setattr("privaudit.attacks._token_table.time", late)
    found = attack(text(Text(frozen=True)))
    assert found.state == "stopped"
    assert "time was up after 0 of 60 ids" in found.reason


def test_no_gradient_is_no_information() -> None:
    model = flat()
    with torch.no_grad():
        model[3].weight.zero_()  # type: ignore[index]
    found = attack(model, torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]))
    assert found.state == "failed"
    assert "no information" in found.reason


class Claims(TokenAttack):
    """Says what it is told to, true or not."""

    name = "claims"
    title = "Claims"
    source = "none"
    state: Any = "exact"
    ids: tuple[int, ...] = ()
    right: bool = False

    @classmethod
    def tiny(cls) -> Claims:
        return cls()

    def run(self, *_: Any, **__: Any) -> TokenReconstruction:
        leaks = [LeakedIds("0.weight", tuple(range(5)), self.ids)] if self.ids else None
        sequence = torch.tensor([self.ids]) if len(self.ids) == 5 else None
        return TokenReconstruction(leaks, sequence, self.state)


@pytest.mark.parametrize(
    ("claim", "state", "why"),
    [
        (Claims(ids=(9, 9, 9, 9, 9)), "plateau", "5 positions differ"),
        (Claims(ids=(9,)), "plateau", "gives no order"),
        (Claims(), "failed", "gives no id"),
        (Claims(state="skipped", ids=(9,)), "failed", "gives ids"),
        (Claims(state="fine", ids=(9,)), "failed", "no way for an attack to end"),
        (Claims(ids=(1, 2, 3, 4, 5)), "exact", ""),
    ],
)
def test_claims_are_held_against_the_client(
    claim: Claims, state: str, why: str
) -> None:
    found = attack(flat(), torch.tensor([[1, 2, 3, 4, 5]]), given=claim)
    assert found.state == state
    assert why in found.reason


def test_the_attacker_is_given_no_ids() -> None:
    """Nothing that reaches an attack holds the client's ids."""
    seen: list[Any] = []

    class Spy(Claims):
        def run(self, *args: Any, **kwargs: Any) -> TokenReconstruction:
            seen.extend([args, kwargs])
            return super().run()

    attack(flat(), torch.tensor([[46, 2, 38, 2, 27]]), given=Spy())
    (target, observation), _ = seen
    held = [target.labels, *target.extras.values(), *observation.gradients.values()]
    integers = [v for v in held if isinstance(v, Tensor) and not v.is_floating_point()]
    assert all(v.numel() == 1 for v in integers)
