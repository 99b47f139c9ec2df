"""The façade: inventory → exposure → attacks → metrics → verdict → result."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privaudit._guard import pristine
from privaudit._ladder import FEATURES, GRADIENT, priors_of
from privaudit._pixels import Normalisation
from privaudit._tokens import is_tokens
from privaudit.config import (
    AuditConfig,
    Budget,
    Client,
    DefenseConfig,
    Knowledge,
    Split,
    resolve_budget,
)
from privaudit.errors import ConfigError
from privaudit.exposure import unwrap
from privaudit.inventory import Inventory
from privaudit.plan import Plan, make_plan, plan_features
from privaudit.result import AuditResult
from privaudit.session.feature_opening import SentFeatures
from privaudit.session.features import FeatureSession
from privaudit.session.given import (
    name_of,
    named_split,
    placed,
    refuse_both,
    refuse_resume,
    refuse_with_split,
    settled,
    value_bounds,
    whole,
)
from privaudit.session.stances import Chosen, Defended, answers
from privaudit.session.subject import Subject, differentiable
from privaudit.verdict import Policy

if TYPE_CHECKING:
    import torch
    from torch import nn

    from privaudit.attacks import Attack, FeatureAttack
    from privaudit.defenses import Defense
    from privaudit.inventory.records import SplitCandidate
    from privaudit.recording import RecordedStep, Update
    from privaudit.study.compare import DefenseStudy
    from privaudit.study.federated import FederatedTraining
    from privaudit.study.sweep import CutStudy

    Gradients = Mapping[str, torch.Tensor | None] | Mapping[str, torch.Tensor]


class Auditor:
    """Audits what a PyTorch model gives away about the images it is trained on.

    Args:
        model: Any ``nn.Module``; compiled and data-parallel wrappers are taken off.
            It comes back untouched.
        split: Where a device hands over to a server in split inference: a name such as
            ``blocks.6``, a :class:`Split`, or (client, server), for which ``model`` is
            None. What is audited is then what the device sends, in eval mode.
        training_step: (model, inputs, labels) → scalar loss; replaces forward and
            loss where training does more than that.
        mean: Per channel, in [0, 1] units; None: the model takes pixels in [0, 1].
        std: Per channel.
        value_range: Black and white in the units of the images, such as (0, 4095);
            None: floats are in [0, 1], and whole numbers are uint8.
        shown_bands: One or three bands, counted from 1, that pictures show of images
            of many; None: the first three. Scores always use all.
        loss: (output, labels) → scalar; None is cross-entropy on the logits.
        client: How the client makes its step.
        knowledge: What the attacker knows beside model and gradient.
        defenses: What stands between client and attacker, in the order in which it
            acts; trained ones after their ``fit``.
        countermeasures: What the attacker does about defenses: ``auto`` answers those
            that are stated or found, ``none`` none; or names and instances.
        attacks: ``auto``, ``all``, or a list of names and instances.
        priors: What an attacker on features has beside the model, by name:
            ``public_images`` of the same kind as the private ones, an
            ``inverse_network`` (path or module).
        policy: Limits; None is the preset ``default-1``.
        budget: ``quick``, ``standard``, ``thorough``, or a Budget.
        seed: Of every draw that the audit makes.
        device: Where to run; None: where the model is.

    Raises:
        ConfigError: A setting that cannot be used.
        UnsupportedModelError: A model that cannot be audited as it stands.

    Example::

        result = Auditor(model, client=Client(batch_size=1)).audit((images, labels))
        print(result.verdict.line)
        result.save("report.html")
    """

    def __init__(
        self,
        model: nn.Module | None,
        *,
        split: str | Split | tuple[nn.Module, nn.Module] | None = None,
        training_step: Callable[..., torch.Tensor] | None = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        value_range: tuple[float, float] | None = None,
        shown_bands: Sequence[int] | None = None,
        loss: Callable[[Any, Any], torch.Tensor] | None = None,
        client: Client | None = None,
        knowledge: Knowledge | None = None,
        defenses: Sequence[Defense] = (),
        countermeasures: Chosen = "auto",
        attacks: str | Sequence[str | Attack | FeatureAttack] = "auto",
        priors: Mapping[str, object] | None = None,
        policy: Policy | None = None,
        budget: str | Budget = "standard",
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        bare, notes = unwrap(whole(model, split))
        normal = Normalisation.of(mean, std)
        self._split = named_split(split)
        kind = "gradient" if self._split is None else "features"
        defended = Defended(settled(defenses, kind), countermeasures)
        answers([], countermeasures, kind)
        self._attacks = GRADIENT.choose("auto" if self._split else attacks)
        self._feature_attacks = FEATURES.choose(attacks if self._split else "auto")
        chosen = self._feature_attacks if self._split else self._attacks
        refuse_both(loss, training_step)
        self.config = AuditConfig(
            mean=None if normal.mean is None else list(normal.mean),
            std=None if normal.std is None else list(normal.std),
            value_range=value_bounds(value_range),
            shown_bands=None if shown_bands is None else list(shown_bands),
            loss="cross_entropy" if loss is None else name_of(loss),
            training_step=None if training_step is None else name_of(training_step),
            client=reduce(
                lambda c, d: d.changed_client(c), defended.defenses, client or Client()
            ),
            knowledge=knowledge or Knowledge(),
            attacks=attacks if isinstance(attacks, str) else [a.name for a in chosen],
            attack_settings={
                a.name: given for a in chosen if (given := a.settings_given())
            },
            split=self._split,
            priors=sorted(priors or {}),
            defenses=[
                DefenseConfig(name=d.name, settings=d.settings())
                for d in defended.defenses
            ],
            countermeasures=countermeasures
            if isinstance(countermeasures, str)
            else [c if isinstance(c, str) else c.name for c in countermeasures],
            policy=policy or Policy(),
            budget=resolve_budget(budget),
            seed=seed,
            device=None if device is None else str(device),
        )
        refuse_with_split(self.config, priors or {}, priors_of(self._feature_attacks))
        self._subject = Subject(
            placed(bare, device), self.config, normal, notes, (loss, training_step),
            dict(priors or {}), defended,
        )  # fmt: skip

    def inventory(self, sample: Any = None) -> Inventory:
        """What is in the model: every random draw, what is shared, what it means.

        Runs one training step and one forward pass in eval mode: a look at module
        names alone would miss functional dropout. Defenses that were stated, or that
        show in what is sent, are among it.

        Args:
            sample: As for :meth:`audit`; None uses a shipped photograph of the size
                that the model states.
        """
        if self._split is not None:
            with self._subject.features(sample) as features:
                return features.looked_over()
        if is_tokens(self._subject.model, sample):
            with self._subject.tokens(sample) as tokens:
                return tokens.inventory
        with self._subject.images(sample) as session:
            return session.looked_over()

    def plan(self, sample: Any = None) -> Plan:
        """Which attacks would run, for how long, in how much memory.

        Measured on one client's step, so it takes about as long as one.
        """
        if self._split is not None:
            with self._subject.features(sample) as features:
                return plan_features(features, self._feature_attacks)
        with self._subject.images(sample) as session:
            return make_plan(session, self._attacks, self.config.budget)

    def audit(self, sample: Any, *, resume: str | Path | None = None) -> AuditResult:
        """Attack the training step, or what a split model sends, and judge the result.

        Args:
            sample: images, (images, labels), or {"pixel_values": …, "labels": …}.
                Images: float (B, C, H, W) in [0, 1], uint8, PIL images, paths.
                Labels left out: the model's own argmax, recorded.
            resume: A folder that keeps every attack on a client once it is finished.
                The same call with the same folder goes on where the audit was
                interrupted. It holds reconstructions: keep it as you keep the images.

        Raises:
            ConfigError: The sample cannot be used as it is, or the folder holds
                another audit, with the differences.
            UnsupportedModelError: The model's training step fails.
        """
        if sample is None:
            raise ConfigError(
                "Auditor.audit(sample)",
                expected="images, or (images, labels)",
                got="None",
                hint="Pass the images of a training step.",
            )
        if self._split is not None:
            refuse_resume(resume, "features: a sweep keeps each cut once it is done")
            with self._subject.features(sample) as features:
                return features.audit(self._feature_attacks)
        if is_tokens(self._subject.model, sample):
            refuse_resume(resume, "token ids: they take seconds, nothing is kept")
            with self._subject.tokens(sample) as tokens:
                return tokens.audit()
        with self._subject.images(sample) as session:
            if resume is None:
                return session.audit(self._attacks)
            from privaudit._resume import resumed

            own = resumed(session, resume, self._subject.callables)
            return session.audit(self._attacks, own)

    def attack_features(
        self,
        h: torch.Tensor,
        *,
        truth: Any = None,
        image_shape: tuple[int, int, int] | None = None,
    ) -> AuditResult:
        """Attack features that were recorded elsewhere, as the server would.

        The model must hold the weights that made them, and ``split`` name the cut.

        With ``truth`` everything is scored and judged as in :meth:`audit`. Without it
        reconstructions are made and shown, but nothing can be scored: the verdict is
        inconclusive, never "no leak found".

        Args:
            h: (batch, …) as they left the device, one row an image.
            truth: The images, as for :meth:`audit`; None: not known.
            image_shape: (channels, height, width), where there is no truth and the
                model does not state it.

        Raises:
            ConfigError: No ``split``; features of another shape than the cut gives,
                or not one row an image.
        """
        sent = SentFeatures(h, image_shape)
        with self._subject.features(truth, sent=sent) as session:
            return session.audit(self._feature_attacks)

    def attack_gradient(
        self,
        update: str | Path | Update | RecordedStep | Gradients,
        *,
        batch_size: int,
        truth: Any = None,
        image_shape: tuple[int, int, int] | None = None,
        other_weights: bool = False,
        loss_scale: float | None = None,
    ) -> AuditResult:
        """Attack a gradient that was recorded elsewhere, as the server would.

        The model must hold the weights from before the step.

        With ``truth`` everything is scored and judged as in :meth:`audit`. Without it
        nothing can be scored: an image from which the whole gradient can be computed
        again is a leak, anything else is inconclusive, never "no leak found".

        Args:
            update: What ``step.save`` wrote, the step, an Update, or gradients by name.
            batch_size: Images in the step, or in each of several local steps.
            truth: The images of the step, as for :meth:`audit`; ``(None, labels)``
                where only the labels are known; None: labels are read off.
            image_shape: (channels, height, width), where neither the update nor the
                model states it.
            other_weights: True attacks an update that was made with other weights.
            loss_scale: Factor that a GradScaler left in the gradient; None: found
                where the gradient can be recomputed, at the truth or at an image found.

        Raises:
            ConfigError: The update is not of this model, or the truth not of the
                update, each by name.
        """
        from privaudit._recorded import Request, attack_recorded

        request = Request(
            update, batch_size, truth, image_shape, other_weights, loss_scale
        )
        started = time.monotonic()
        with pristine(self._subject.model), differentiable():
            return attack_recorded(
                request,
                self._subject.model,
                self.config,
                self._attacks,
                lambda images, config: self._subject.session(images, config, started),
            )

    def split_candidates(self, sample: Any = None) -> list[SplitCandidate]:
        """Where the model can be cut: name, shape, bytes, layout, operations.

        Args:
            sample: As for :meth:`audit`; None uses a shipped photograph.
        """
        from privaudit.session.feature_cut import candidates

        with pristine(self._subject.model), differentiable():
            return candidates(
                self._subject.model, sample, self.config, self._subject.normalisation
            )

    def sweep(
        self,
        images: Any,
        splits: Sequence[str | Split] | None = None,
        *,
        out: str | Path | None = None,
    ) -> CutStudy:
        """Audit one cut after the other: where does the model leak, at which cost?

        Args:
            images: As for :meth:`audit`.
            splits: Names or Splits, shallow to deep; None: up to eight of
                :meth:`split_candidates`, spread over the model's depth.
            out: A folder that keeps each cut once it is done, and gets the report. The
                same call goes on where it was stopped.

        Raises:
            ConfigError: No cut to audit, or a sample that cannot be used.
        """
        from privaudit.study.sweep import swept

        cuts = splits or self.split_candidates(images)
        opened = partial(self._subject.features, images)
        return swept(cuts, opened, self._feature_attacks, out)

    def compare_defenses(
        self,
        sample: Any,
        defenses: Sequence[Defense | Sequence[Defense]],
        *,
        train_data: Any = None,
        utility: Callable[[nn.Module], float] | None = None,
        training: FederatedTraining | None = None,
        out: str | Path | None = None,
    ) -> DefenseStudy:
        """What does each defense buy against an attacker who knows of it, at what cost?

        Args:
            sample: As for :meth:`audit`.
            defenses: One a row, or a list that acts one after the other;
                ``Undefended()`` is what they are compared with.
            train_data: Batches of (images in [0, 1], labels): what trained defenses
                learn from, and models behind gradient defenses for their utility.
            utility: model → number, larger being better; None: not measured. For the
                share of right answers: ``privaudit.study.utility.accuracy``.
            training: How models are trained behind gradient defenses for their utility.
            out: A folder that keeps each part once it is done; the same call goes on
                where it was stopped.

        Raises:
            ConfigError: No defense, one that does not act on what is sent, or a sample
                that cannot be used.
        """
        from privaudit.study.compare import compared

        return compared(
            self._subject, sample, defenses, attacks=self._attacks,
            feature_attacks=self._feature_attacks, train_data=train_data,
            utility=utility, training=training, out=out,
        )  # fmt: skip

    def open_features(
        self, sample: Any, split: Split | None = None
    ) -> AbstractContextManager[FeatureSession]:
        """A session at the cut, for training on it; the model is pristine around."""
        return self._subject.features(sample, split)
