"""Audits of split inference: from the cut to the verdict, and what must not happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor, nn

from privaudit import Auditor, Budget, Client, Knowledge, Split
from privaudit._controls import shipped_images
from privaudit._ladder import FEATURES
from privaudit.attacks import FeatureAttack, Rmle
from privaudit.errors import ConfigError
from privaudit.types import FeatureObservation, FeatureTarget, Reconstruction, Search

SHORT = Budget(seconds=20)


class Small(nn.Module):
    """A map, tokens of it, and a head."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.stem = nn.Conv2d(3, 48, 4, 4)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.5)
        self.narrow = nn.Conv2d(48, 4, 3, 2, 1)
        self.head = nn.Linear(4 * 2 * 2, 5)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(0.2 * torch.randn(p.shape, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.narrow(self.drop(self.act(self.stem(x))))
        return cast(Tensor, self.head(out.flatten(1)))


@pytest.fixture
def images() -> Tensor:
    return shipped_images(3, (3, 16, 16))


def audit(
    images: Tensor, attack: FeatureAttack, split: str = "stem", **more: Any
) -> Any:
    return Auditor(Small(), split=split, attacks=[attack], budget=SHORT, **more).audit(
        images
    )


def outcome_of(result: Any) -> Any:
    return next(iter(result.attacks.values())).record


class Double(FeatureAttack):
    """Ends as its tests say."""

    name: ClassVar[str] = "double"
    title: ClassVar[str] = "A double"
    source: ClassVar[str] = "none"
    gives: ClassVar[Any] = None

    @classmethod
    def tiny(cls) -> FeatureAttack:
        return cls()

    def run(
        self, target: FeatureTarget, observation: FeatureObservation, **_: Any
    ) -> list[Reconstruction]:
        found = type(self).gives(target, observation)
        return list(found)

    def loss_at(
        self, target: FeatureTarget, observation: FeatureObservation, images: Tensor
    ) -> list[float]:
        return [0.0] * len(images)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    def gives(function: Any) -> Double:
        monkeypatch.setattr(Double, "gives", staticmethod(function))
        return Double()

    return gives


def flat(
    observation: FeatureObservation, state: Any, **more: Any
) -> list[Reconstruction]:
    grey = torch.full((1, *observation.image_shape), 0.5)
    return [Reconstruction(grey, state, **more) for _ in range(len(observation))]


def test_a_shallow_cut_leaks_and_the_report_says_where(
    images: Tensor, tmp_path: Any
) -> None:
    result = audit(images, Rmle(iterations=400))
    assert result.verdict.word == "leaks"
    assert result.worst["ssim"].value > 0.9
    record = result.record
    assert record.exposure == "features"
    assert record.split.name == "stem"
    assert record.split.shape == [48, 4, 4]
    assert record.split.bytes_per_image == 4 * 48 * 16
    assert record.split.layout == "nchw"
    assert record.split.grid == (4, 4)
    assert record.split.complete
    assert record.split.client_flops == 2 * 48 * 48 * 16
    assert "features at stem" in record.threat_model.exposure
    result.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Where the model is cut" in page
    assert "split inference" in page
    assert "labels given" not in page
    assert "From what a device sends, an attacker can rebuild" in page
    assert "training step" not in page


def test_the_model_comes_back_as_it_was(images: Tensor) -> None:
    model = Small().train()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    Auditor(model, split="act", attacks=[Rmle.tiny()], budget=SHORT).audit(images)
    assert model.training
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


def test_dropout_is_off_as_in_deployment(images: Tensor) -> None:
    result = audit(images, Rmle.tiny(), split="drop")
    assert result.record.preflight.loss_at_truth < 1e-6
    assert not any(f.code == "split-random" for f in result.record.inventory.findings)


@pytest.mark.parametrize("state", ["exact", "converged", "plateau", "stopped"])
def test_grey_images_are_never_cleared(images: Tensor, double: Any, state: str) -> None:
    search = Search(1.0, 0.0, 10, 1, 5)
    attack = double(lambda _, seen: flat(seen, state, search=search))
    result = audit(images, attack)
    assert result.verdict.word == "inconclusive"
    assert result.verdict.exit_code == 3


def test_a_false_claim_of_exactness_is_a_failure(images: Tensor, double: Any) -> None:
    result = audit(images, double(lambda _, seen: flat(seen, "exact")))
    record = outcome_of(result)
    assert record.evidence.state == "failed"
    assert "claims an exact match" in record.evidence.reason


def test_converged_is_decided_by_the_loss_at_the_truth(
    images: Tensor, double: Any
) -> None:
    def gives(final: float) -> Any:
        return lambda _, seen: flat(seen, "plateau", search=Search(1.0, final, 9, 1, 5))

    assert outcome_of(audit(images, double(gives(0.02)))).evidence.state == "plateau"
    assert outcome_of(audit(images, double(gives(0.005)))).evidence.state == "converged"


def test_one_image_that_is_stuck_makes_the_attack_a_plateau(
    images: Tensor, double: Any
) -> None:
    def gives(_: FeatureTarget, seen: FeatureObservation) -> list[Reconstruction]:
        found = flat(seen, "plateau", search=Search(1.0, 0.0, 9, 1, 5))
        stuck = replace(found[-1], search=Search(1.0, 0.5, 9, 1, 5))
        return [*found[:-1], stuck]

    assert outcome_of(audit(images, double(gives))).evidence.state == "plateau"


@pytest.mark.parametrize(
    ("gives", "reason"),
    [
        (lambda *_: [], "0 results for 3 images"),
        (lambda *_: 1 / 0, "ZeroDivisionError"),
        (lambda _, seen: flat(seen, "skipped"), "says skipped"),
        (lambda _, seen: flat(seen, "fine"), "no way for an attack to end"),
        (
            lambda *_: [Reconstruction(None, "converged")] * 3,
            "gives no image",
        ),
        (
            lambda *_: [Reconstruction(torch.rand(1, 3, 8, 8), "plateau")] * 3,
            "shape",
        ),
        (
            lambda *_: (
                [Reconstruction(torch.full((1, 3, 16, 16), float("nan")), "plateau")]
                * 3
            ),
            "not a finite image",
        ),
    ],
)
def test_what_is_no_result_fails_with_its_reason(
    images: Tensor, double: Any, gives: Any, reason: str
) -> None:
    record = outcome_of(audit(images, double(gives)))
    assert record.evidence.state == "failed"
    assert reason in record.evidence.reason


def test_attacks_see_no_image_of_the_device(images: Tensor, double: Any) -> None:
    seen: list[Any] = []

    def gives(target: FeatureTarget, sent: FeatureObservation) -> list[Reconstruction]:
        seen.append((target, sent))
        return flat(sent, "plateau")

    audit(images, double(gives))
    target, sent = seen[0]
    held = [v for v in vars(target).values() if isinstance(v, Tensor)]
    held += [v for v in target.memory.values() if isinstance(v, Tensor)]
    assert not held
    assert sent.features.shape == (3, 48, 4, 4)
    assert target.public is None


def test_later_attacks_start_from_the_closest_images(
    images: Tensor, double: Any
) -> None:
    starts: list[Any] = []

    def gives(target: FeatureTarget, sent: FeatureObservation) -> list[Reconstruction]:
        starts.append(target.memory.get("start"))
        return flat(sent, "plateau")

    Auditor(
        Small(), split="stem", attacks=[Rmle(iterations=100), double(gives)],
        budget=SHORT,
    ).audit(images)  # fmt: skip
    assert starts[0].shape == images.shape


def test_without_split_priors_and_feature_attacks_are_refused() -> None:
    with pytest.raises(ConfigError, match="name the cut"):
        Auditor(Small(), priors={"public_images": 1})
    with pytest.raises(ConfigError, match="Attacks on features need split="):
        Auditor(Small(), attacks=[Rmle.tiny()])
    with pytest.raises(ConfigError, match="audit each by itself"):
        Auditor(Small(), split="stem", training_step=lambda *_: torch.zeros(()))
    with pytest.raises(ConfigError, match="closed_form"):
        Auditor(Small(), split="stem", attacks=["closed_form"])


@pytest.mark.parametrize(
    "more",
    [
        {"client": Client(local_steps=2, lr=0.1)},
        {"client": Client(autocast="bfloat16")},
        {"knowledge": Knowledge(labels="inferred")},
        {"loss": nn.MSELoss()},
    ],
)
def test_settings_of_training_are_no_part_of_a_cut(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="does not train"):
        Auditor(Small(), split="stem", **more)


def test_a_prior_that_no_attack_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match="inverse_netwrk"):
        Auditor(Small(), split="stem", priors={"inverse_netwrk": "x.safetensors"})
    Auditor(Small(), split="stem", priors={"inverse_network": "x.safetensors"})


def test_an_unknown_cut_lists_the_nearest_names(images: Tensor) -> None:
    with pytest.raises(ConfigError, match="stem"):
        Auditor(Small(), split="sten", budget=SHORT).audit(images)


def test_client_and_server_are_a_cut(images: Tensor) -> None:
    whole = Small().eval()
    client = nn.Sequential(whole.stem, whole.act)
    server = nn.Sequential(whole.drop, whole.narrow, nn.Flatten(), whole.head)
    result: Any = Auditor(
        None, split=(client, server), attacks=[Rmle(iterations=60)], budget=SHORT
    ).audit(images)
    assert result.record.split.shape == [48, 4, 4]
    assert result.record.split.complete
    with pytest.raises(ConfigError, match="expected a model"):
        Auditor(None)


def test_recorded_features_are_attacked_like_live_ones(images: Tensor) -> None:
    model = Small().eval()
    with torch.no_grad():
        sent = model.stem(images)
    auditor = Auditor(model, split="stem", attacks=[Rmle(iterations=60)], budget=SHORT)
    live, recorded = auditor.audit(images), auditor.attack_features(sent, truth=images)
    one, other = (outcome_of(r).evidence.scores["ssim"] for r in (live, recorded))
    assert [s.value for s in one] == pytest.approx([s.value for s in other], abs=1e-5)


def test_without_the_truth_nothing_is_scored_or_cleared(images: Tensor) -> None:
    model = Small().eval()
    with torch.no_grad():
        sent = model.stem(images)
    auditor = Auditor(model, split="stem", attacks=[Rmle(iterations=60)], budget=SHORT)
    with pytest.raises(ConfigError, match="input size"):
        auditor.attack_features(sent)
    result = auditor.attack_features(sent, image_shape=(3, 16, 16))
    assert result.verdict.word == "inconclusive"
    assert outcome_of(result).evidence.scores == {}
    assert result.attacks["rmle"].reconstructions.shape == (3, 3, 16, 16)
    assert result.record.samples[0].image is None


def test_foreign_features_are_refused(images: Tensor) -> None:
    auditor = Auditor(Small(), split="stem", attacks=[Rmle.tiny()], budget=SHORT)
    with pytest.raises(ConfigError, match="floats of shape"):
        auditor.attack_features(torch.rand(3, 48, 5, 5), truth=images)
    with pytest.raises(ConfigError, match=r"3 image\(s\), one a row"):
        auditor.attack_features(torch.rand(3, 48, 4, 4), truth=images[:2])


def test_the_ladder_knows_what_this_version_lacks(images: Tensor) -> None:
    result = audit(images, Rmle.tiny(), split="narrow")
    states = {a.evidence.label: a.evidence.state for a in result.record.attacks}
    assert set(FEATURES.names) <= set(states)
    assert states["drag"] == "missing"
    assert result.verdict.word != "no leak found"


def test_features_that_say_nothing_are_found(images: Tensor) -> None:
    model = Small()
    with torch.no_grad():
        model.narrow.weight.zero_()
    found = Auditor(model, split="narrow", budget=SHORT).inventory(images).findings
    assert "constant-features" in {f.code for f in found}


def test_public_images_reach_the_attack(images: Tensor, double: Any) -> None:
    shown: list[Any] = []

    def gives(target: FeatureTarget, sent: FeatureObservation) -> list[Reconstruction]:
        shown.append(target.public)
        return flat(sent, "plateau")

    public = shipped_images(5, (3, 16, 16))
    result = audit(images, double(gives), priors={"public_images": public})
    assert torch.equal(shown[0], public)
    assert any("5 images" in text for text in result.record.threat_model.knows)


def test_candidates_can_be_cut(images: Tensor) -> None:
    found = Auditor(Small()).split_candidates(images)
    names = [c.name for c in found]
    assert {"stem", "act", "narrow"} <= set(names)
    assert names.index("stem") < names.index("narrow")
    stem = found[names.index("stem")]
    assert stem.shape == [48, 4, 4]
    assert stem.complete


def test_a_split_as_a_record(images: Tensor) -> None:
    split = Split("stem", layout="nchw")
    result: Any = Auditor(
        Small(), split=split, attacks=[Rmle.tiny()], budget=SHORT
    ).audit(images)
    assert result.record.config.split == split
    assert "given" in result.record.split.layout_source


def test_success_rates_are_kept_and_drawn_with_the_limit(tmp_path: Any) -> None:
    result = audit(shipped_images(4, (3, 16, 16)), Rmle(iterations=150))
    (ssim,) = [s for s in outcome_of(result).success if s.metric == "ssim"]
    values = [s.value for s in outcome_of(result).evidence.scores["ssim"]]
    assert ssim.images == 4
    for threshold, rate in zip(ssim.thresholds, ssim.rates, strict=True):
        assert rate == sum(v > threshold for v in values) / 4
    result.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    section = page[page.index('id="success"') :]
    assert "Success rate of each attack" in section
    assert 'class="rule-limit"' in section
    few = audit(shipped_images(3, (3, 16, 16)), Rmle.tiny())
    few.save(tmp_path / "few.html")
    assert 'id="success"' not in (tmp_path / "few.html").read_text()
