"""The inverse network: trained, handed over, kept as a file, refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from privaudit._pixels import Normalisation
from privaudit._progress import Tick, watched_by
from privaudit.attacks import InverseNetwork
from privaudit.attacks import _inverse_file as kept
from privaudit.attacks._inverse_decoders import decoder_for
from privaudit.attacks._inverse_training import Trained, train
from privaudit.attacks.base import INTERRUPTED
from privaudit.config import Budget
from privaudit.errors import ConfigError
from privaudit.exposure import Cut
from privaudit.types import FeatureLayout, FeatureTarget, Reconstruction
from tests.contract.feature_cases import SHAPE, FeatureCase, feature_case
from tests.unit.test_feature_search import interrupting, meddled, pictures, run

TINY = InverseNetwork.tiny()
FREE = Budget()


def trained(case: FeatureCase, attack: InverseNetwork = TINY) -> Trained:
    generator = torch.Generator().manual_seed(0)
    return train(case.target, attack, budget=FREE, generator=generator)


def saved(case: FeatureCase, folder: Path) -> Path:
    network = trained(case, TINY)
    path = folder / "inverse.safetensors"
    return kept.save(path, network, case.target, TINY.settings(), SHAPE)


def given(case: FeatureCase, prior: object) -> FeatureTarget:
    """A target with that network and without public images."""
    return FeatureTarget(
        case.target.model, case.target.exposure, priors={"inverse_network": prior}
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "nchw"])
def test_it_learns_to_undo_a_shallow_cut(kind: str) -> None:
    case = feature_case(kind)
    attack = InverseNetwork(width=48, layers=1, iterations=400, batch_size=16)
    found = case.attack(attack, budget=FREE)
    error = (pictures(found) - case.images).square().flatten(1).mean(1)
    spread = (case.images - case.images.mean((1, 2, 3), keepdim=True)).square()
    assert bool((error < 0.35 * spread.flatten(1).mean(1)).all())


@pytest.mark.parametrize("kind", ["tokens", "nchw", "vector"])
def test_training_lowers_the_error_and_says_how_far_it_is(kind: str) -> None:
    case = feature_case(kind)
    seen: list[Tick] = []
    with watched_by(seen.append):
        network = trained(case)
    assert [t.done for t in seen] == [10, 20, 30, 40, 50, 60]
    assert seen[-1].loss < seen[0].loss
    assert network.error == seen[-1].loss
    assert (network.images, network.iterations, network.ended) == (38, 60, "")
    assert not network.network.training
    assert not any(p.requires_grad for p in network.network.parameters())


def test_the_report_is_told_what_it_learnt_from() -> None:
    for one in feature_case("nchw").attack(TINY):
        assert one.form == "learnt inverse"
        assert one.state == "plateau"
        assert one.notes[0].startswith("trained on 38 public images for 60 iterations")


def test_one_training_serves_the_whole_audit() -> None:
    case = feature_case("nchw")
    first = pictures(run(TINY, case.target, case.observation))
    seen: list[Tick] = []
    with watched_by(seen.append):
        again = pictures(run(TINY, case.target, case.observation))
    assert seen == []
    assert torch.equal(first, again)


def test_another_network_is_trained_for_other_settings() -> None:
    case = feature_case("nchw")
    first = pictures(run(TINY, case.target, case.observation))
    wider = TINY.model_copy(update={"width": 40})
    assert not torch.equal(first, pictures(run(wider, case.target, case.observation)))


def test_without_images_it_says_what_to_pass() -> None:
    case = feature_case("nchw")
    for target in (
        FeatureTarget(case.target.model, case.target.exposure),
        replace(case.target, public=torch.empty(0, *SHAPE)),
    ):
        for one in run(TINY, target, case.observation):
            assert one.state == "skipped"
            assert one.images is None
            assert 'priors={"public_images": images}' in one.reason
    with pytest.raises(ConfigError, match="expected public images of the same kind"):
        train(target, TINY, budget=FREE, generator=torch.Generator())


def test_public_images_of_another_size_are_refused() -> None:
    case = feature_case("nchw")
    target = replace(case.target, public=torch.rand(4, 3, 8, 8))
    with pytest.raises(ConfigError, match=r"shape \(count, 3, 16, 16\), got \(4, 3, 8"):
        run(TINY, target, case.observation)


def test_an_error_that_is_not_finite_ends_training_in_words() -> None:
    case = feature_case("nchw")
    target = meddled(case, lambda call, f: f * float("nan") if call > 3 else f)
    with pytest.raises(ConfigError, match="Lower learning_rate"):
        run(TINY, target, case.observation)


def test_ctrl_c_while_training_keeps_what_was_learnt() -> None:
    case = feature_case("nchw")
    for one in run(TINY, meddled(case, interrupting(20)), case.observation):
        assert one.images is not None
        assert one.state == "stopped"
        assert one.reason == INTERRUPTED


@pytest.mark.parametrize("budget", [Budget(iterations=5), Budget(seconds=0.05)])
def test_a_training_that_was_cut_short_is_stopped(budget: Budget) -> None:
    case = feature_case("nchw")
    attack = TINY.model_copy(update={"iterations": 10**6})
    for one in case.attack(attack, budget=budget):
        assert one.state == "stopped"
        assert one.reason.startswith("training was cut short")


def test_masked_tokens_are_replaced_while_training() -> None:
    case = feature_case("tokens")
    plain = trained(case)
    masked = trained(case, TINY.model_copy(update={"mask_share": 0.5}))
    tokens = [n.network.decoder.mask_token for n in (plain, masked)]  # type: ignore[union-attr]
    start = decoder_for(
        case.target.exposure.layout, (17, 96), SHAPE, width=32, layers=1,
        generator=torch.Generator().manual_seed(0),
    ).mask_token  # fmt: skip
    assert torch.allclose(tokens[0], start, atol=1e-3)  # type: ignore[arg-type]
    assert not torch.allclose(tokens[1], start, atol=1e-3)  # type: ignore[arg-type]


def test_a_saved_network_gives_the_same_images(tmp_path: Path) -> None:
    for kind in ("tokens", "nchw", "vector"):
        case = feature_case(kind)
        path = saved(case, tmp_path)
        wanted = trained(case).network(case.observation.features).clamp(0, 1)
        for prior in (path, str(path)):
            found = run(TINY, given(case, prior), case.observation)
            assert torch.allclose(pictures(found), wanted, atol=1e-6)
            assert found[0].notes[0].startswith("trained on 38 public images")


def test_a_file_says_what_it_was_made_for(tmp_path: Path) -> None:
    from safetensors import safe_open

    case = feature_case("tokens")
    with safe_open(saved(case, tmp_path), framework="pt") as opened:
        facts = json.loads(opened.metadata()[kept.KEY])
    assert facts["format"] == kept.FORMAT
    assert facts["cut"] == "layers.0"
    assert facts["feature_shape"] == [17, 96]
    assert facts["image_shape"] == [3, 16, 16]
    assert (facts["layout"], facts["prefix_tokens"]) == ("tokens", 1)
    assert facts["grid"] == [4, 4]
    assert facts["settings"] == TINY.settings()
    assert facts["model_digest"].startswith("sha256:")
    assert facts["iterations"] == 60


def other_weights(case: FeatureCase) -> FeatureTarget:
    with torch.no_grad():
        case.target.model[0].weight.mul_(1.2)  # type: ignore[index]
    return case.target


def other_exposure(case: FeatureCase, **changes: Any) -> FeatureTarget:
    exposure = replace(case.target.exposure, **changes)
    return replace(case.target, exposure=exposure)


def test_weights_behind_the_cut_do_not_matter(tmp_path: Path) -> None:
    case = feature_case("nchw")
    path = saved(case, tmp_path)
    with torch.no_grad():
        case.target.model[6].weight.zero_()  # type: ignore[index]
    assert kept.load(path, case.target, SHAPE).images == 38


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_weights, "one whose features of the same image differ by"),
        (
            lambda c: other_exposure(c, normalisation=Normalisation((0.1,), (0.5,))),
            "one whose features of the same image differ by",
        ),
        (lambda c: other_exposure(c, cut=Cut("3")), "expected the cut 3, as in"),
        (
            lambda c: other_exposure(c, layout=FeatureLayout("nhwc", 0, (8, 8))),
            "expected the layout nhwc, as in this audit, got the layout nchw",
        ),
        (
            lambda c: other_exposure(c, layout=FeatureLayout("nchw", 0, (4, 8))),
            r"the patch grid \(4, 8\)",
        ),
    ],
)
def test_a_network_of_another_client_is_refused(
    change: Any, message: str, tmp_path: Path
) -> None:
    case = feature_case("nchw")
    path = saved(case, tmp_path)
    with pytest.raises(ConfigError, match=message):
        kept.load(path, change(case), SHAPE)


def test_a_network_for_images_of_another_size_is_refused(tmp_path: Path) -> None:
    case = feature_case("nchw")
    with pytest.raises(ConfigError, match=r"images of shape \(3, 16, 16\)\. Train"):
        kept.load(saved(case, tmp_path), case.target, (3, 16, 32))


def rewritten(path: Path, change: Any, *, metadata: bool = True) -> Path:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        facts = opened.metadata()
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata=facts if metadata else None)
    return path


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    case = feature_case("nchw")
    path = saved(case, tmp_path)
    rewritten(path, lambda tensors: tensors.pop("decoder.pixels.weight"))
    with pytest.raises(ConfigError, match="expected the weights that its facts desc"):
        kept.load(path, case.target, SHAPE)
    path = rewritten(saved(case, tmp_path), lambda t: t.pop("probe"))
    with pytest.raises(ConfigError, match="up to the cut"):
        kept.load(path, case.target, SHAPE)
    path = rewritten(saved(case, tmp_path), lambda _: None, metadata=False)
    with pytest.raises(ConfigError, match="a safetensors file of something else"):
        kept.load(path, case.target, SHAPE)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="Train one, or copy the file again"):
        kept.load(path, case.target, SHAPE)
    with pytest.raises(ConfigError, match="expected the file of an inverse network"):
        kept.load(tmp_path / "none.safetensors", case.target, SHAPE)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    case = feature_case("vector")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="expected a place to write"):
        kept.save(
            tmp_path / "file" / "x.safetensors", trained(case), case.target,
            TINY.settings(), SHAPE,
        )  # fmt: skip


class Grey(nn.Module):
    """A user's own module."""

    def __init__(self, shape: tuple[int, ...] = SHAPE) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, features: Tensor) -> Tensor:
        return torch.full((len(features), *self.shape), 1.5)


def test_a_module_may_be_handed_over() -> None:
    case = feature_case("nchw")
    found: list[Reconstruction] = run(TINY, given(case, Grey()), case.observation)
    assert bool((pictures(found) == 1).all())
    assert "handed over as a module" in found[0].notes[0]


def test_a_module_that_gives_no_images_is_refused() -> None:
    case = feature_case("nchw")
    with pytest.raises(ConfigError, match=r"finite images of shape \(2, 3, 16, 16\)"):
        run(TINY, given(case, Grey((3, 4, 4))), case.observation)


def test_anything_else_is_refused() -> None:
    case = feature_case("nchw")
    with pytest.raises(ConfigError, match=r"priors\['inverse_network'\].*got int"):
        run(TINY, given(case, 7), case.observation)


@pytest.mark.parametrize(
    ("layout", "features", "image"),
    [
        (FeatureLayout("tokens", 2, (3, 5)), (17, 20), (1, 25, 33)),
        (FeatureLayout("tokens", 0, None), (9, 20), (3, 12, 24)),
        (FeatureLayout("nchw", 0, (5, 6)), (7, 5, 6), (3, 33, 40)),
        (FeatureLayout("nchw", 0, (24, 24)), (7, 24, 24), (3, 12, 12)),
        (FeatureLayout("nhwc", 0, (4, 4)), (4, 4, 10), (3, 16, 16)),
        (FeatureLayout("vector"), (11,), (3, 20, 10)),
    ],
)
def test_decoders_fit_any_layout(
    layout: FeatureLayout, features: tuple[int, ...], image: tuple[int, int, int]
) -> None:
    world = torch.get_rng_state()
    networks = [
        decoder_for(
            layout, features, image, width=16, layers=1,
            generator=torch.Generator().manual_seed(seed),
        )
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert torch.equal(torch.get_rng_state(), world)
    given = torch.linspace(-1, 1, 2 * features[0]).view(
        2, -1, *[1] * (len(features) - 1)
    )
    drawn = [n(given.expand(2, *features)) for n in networks]
    assert drawn[0].shape == (2, *image)
    assert bool(drawn[0].isfinite().all())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_patches_lie_where_their_tokens_lie() -> None:
    """Rows first: token 1 is to the right of token 0, prefix tokens are nowhere."""
    layout = FeatureLayout("tokens", 1, (2, 3))
    network = decoder_for(
        layout, (7, 8), (1, 4, 6), width=8, layers=1, generator=torch.Generator()
    )
    patches = torch.arange(6.0).view(1, 6, 1).expand(1, 6, 4)
    image = network._unpatched(patches)  # type: ignore[operator]
    assert image[0, 0, ::2, ::2].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert image[0, 0, 1::2, 1::2].tolist() == [[0, 1, 2], [3, 4, 5]]
