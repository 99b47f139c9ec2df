"""Attacks on a gradient that was recorded elsewhere, with the truth or without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from privaudit._blind import Trial, attempt, blind_preflight, blind_record
from privaudit._blind_policy import blind_config, blind_limit
from privaudit._controls import positive_control, shipped_images
from privaudit._pixels import to_range
from privaudit._precision import require_scale, unscaled
from privaudit._provenance import provenance
from privaudit._runner import Clock, Run
from privaudit._scoring import Pictures
from privaudit._session import Session
from privaudit._shape import stated_input_shape
from privaudit._update import Update
from privaudit._update_client import autocast_of, steps_of
from privaudit._update_fit import Fitted
from privaudit._update_notes import notes_on
from privaudit.attacks import Attack
from privaudit.config import AuditConfig
from privaudit.defenses import Detection
from privaudit.errors import ConfigError
from privaudit.inventory import Finding, Inventory
from privaudit.inventory.findings import TRUTH_MISFIT
from privaudit.result import (
    AuditRecord,
    AuditResult,
    ImageStore,
    Preflight,
    SampleRecord,
    ThreatModel,
    gather_evidence,
)
from privaudit.session.stances import (
    GradientView,
    about_defenses,
    error_behind,
    gradient_views,
    with_stance,
)
from privaudit.tape import Tape
from privaudit.types import (
    AttackerKnowledge,
    Observation,
    Target,
)
from privaudit.verdict import (
    judge,
)

Opener = Callable[[Any, AuditConfig], Session]


@dataclass(frozen=True, eq=False)
class Request:
    """What :meth:`~privaudit.Auditor.attack_gradient` was asked for."""

    update: Any
    batch_size: int
    truth: Any
    image_shape: tuple[int, int, int] | None
    other_weights: bool
    loss_scale: float | None


def attack_recorded(
    request: Request,
    model: nn.Module,
    config: AuditConfig,
    attacks: Sequence[Attack],
    opened: Opener,
) -> AuditResult:
    """Attack the update of ``request``; the model is pristine around it.

    Raises:
        ConfigError: The update does not fit the model, or the truth the update.
    """
    update = _as_update(request.update)
    _require_size(request.batch_size)
    require_scale(request.loss_scale)
    fitted = update.fit(model, other_weights=request.other_weights)
    mode = _set_modes(model, update, config)
    client = config.client.model_copy(
        update={
            "batch_size": request.batch_size,
            "mode": mode,
            "autocast": autocast_of(update, config),
            **steps_of(update, config),
        }
    )
    config = config.model_copy(update={"client": client})
    images, labels = _split(request.truth)
    if images is None:
        config = blind_config(config, labels_given=labels is not None)
        shape = _shape(request, update, model)
        count = request.batch_size * client.local_steps
        others = to_range(_stand_ins(count, shape), config.value_range)
        session = opened(others if labels is None else (others, labels), config)
        session.config = blind_limit(session)
        return _recorded(session, update, fitted, request).audit_blind(attacks)
    session = opened(request.truth, config)
    _require_truth(session, request, update)
    return _recorded(session, update, fitted, request).audit(attacks)


@dataclass
class RecordedSession(Session):
    """An audit whose observation came out of a file.

    Its live step, on the truth or on photographs of our own, only tells what the
    model draws. The client's masks are known where the owner kept them, or where
    there are none.
    """

    update: Update = field(kw_only=True)
    left_out: Mapping[str, str] = field(kw_only=True)
    scale_notes: Sequence[Finding] = field(kw_only=True)

    def audit_blind(self, attacks: Sequence[Attack]) -> AuditResult:
        """Attack without the truth: an image counts where it gives the gradient."""
        clock = Clock(self.config.budget, self.started)
        known = self.config.knowledge.labels == "known"
        labels = self.first.batch.labels if known else None
        knowledge = AttackerKnowledge(labels)
        target = Target(self.precision.model, self.exposure, knowledge)
        detections = self._detections()
        views = gradient_views(
            target, self.first, detections, self.defended, seed=self.config.seed
        )
        pictures = Pictures(self.config.shown_bands)
        trials = self._climb_blind(attacks, views[0], clock)
        runs = [t.run for t in trials]
        records = [
            blind_record(t, self.first, pictures, seed=self.config.seed) for t in trials
        ]
        records += self._not_run(attacks, runs)
        control = positive_control(
            [r.attack for r in runs if r.state != "skipped"],
            target,
            self.first,
            budget=self.config.budget,
            seed=self.config.seed,
        )
        count = self.first.step.observation.batch_size
        evidence = gather_evidence(count, records, control, [], truth_known=False)
        record = AuditRecord(
            verdict=judge(evidence, self.config.policy),
            config=self.config,
            threat_model=with_stance(self._threat_model(), views[0].stance),
            inventory=self._with_findings(
                runs, about_defenses(detections, views[:1])
            ).model_copy(update={"detections": detections}),
            preflight=blind_preflight(self.first),
            samples=[self._unseen(i) for i in range(count)],
            truth_known=False,
            attacks=records,
            positive_control=control,
            unrelated=[],
            provenance=self._provenance(),
        )
        return AuditResult(record, ImageStore(pictures.files), pictures.tensors)

    def _climb_blind(
        self, attacks: Sequence[Attack], view: GradientView, clock: Clock
    ) -> list[Trial]:
        trials: list[Trial] = []
        target, client = view.aimed(view.target, self.first)
        for attack in attacks:
            exact = any(t.run.all_exact for t in trials)
            if self.config.attacks == "auto" and exact:
                break
            trial = attempt(attack, target, client, clock=clock, seed=self.config.seed)
            trials.append(replace(trial, run=replace(trial.run, stance=view.stance)))
        return trials

    def _detections(self) -> list[Detection]:
        """What was recorded may have gone through a defense that nobody stated."""
        return self._looked(self.defended.defenses)

    def _again(self) -> None:
        """It was sent once."""

    def _preflight(self, view: GradientView) -> tuple[Preflight, list[Finding]]:
        """The gradient at the truth, as the attacker who knows most compares it."""
        check, doubts = super()._preflight(view)
        if view.stance.defense is None or check.loss_at_truth is None:
            return check, doubts
        error, reach = error_behind(view, self.first, self.precision.model)
        if error > reach:
            return check, doubts
        note = (
            f"behind {view.stance.defense} the gradient at the truth is off by "
            f"{check.loss_at_truth:.1e}, which that explains"
        )
        kept = [f for f in doubts if f.code != TRUTH_MISFIT]
        notes = [n for n in check.notes if "gradient at the truth" not in n]
        update = {"loss_at_truth": None, "notes": [*notes, note]}
        return check.model_copy(update=update), kept

    def _unseen(self, index: int) -> SampleRecord:
        given = self.config.knowledge.labels == "known"
        return SampleRecord(
            index=index,
            name="not given",
            client=0,
            label=self.labels.class_id(index) if given else None,
            label_source="given" if given else "none",
            image=None,
        )

    def _provenance(self) -> Any:
        found = provenance(
            self.model,
            torch.empty(0),
            self.config.policy,
            device=str(self.first.batch.images.device),
            seconds=time.monotonic() - self.started,
        )
        return found.model_copy(update={"data_digest": self.update.digest()})

    def _with_findings(
        self, runs: Sequence[Run[Attack]], doubts: Sequence[Finding]
    ) -> Inventory:
        found = super()._with_findings(runs, doubts)
        own = notes_on(self.update, self.left_out, known=self.first.masks_known)
        listed = [*found.findings, *self.scale_notes, *own]
        return found.model_copy(update={"findings": listed})

    def _threat_model(self) -> ThreatModel:
        usual = super()._threat_model()
        return usual.model_copy(
            update={"exposure": f"{usual.exposure}, recorded from a client"}
        )


def _recorded(
    session: Session, update: Update, fitted: Fitted, request: Request
) -> RecordedSession:
    """The session with the recorded gradient in place of the live one."""
    live = session.first
    seen = live.step.clean
    tape, known = _masks(update, live.step.tape)
    at_truth = known and _split(request.truth)[0] is not None
    plain = unscaled(
        fitted.gradients,
        request.loss_scale,
        same=session.recomputed(tape) if at_truth else None,
        like=seen.gradients,
        noise=live.noise_floor,
    )
    observation = Observation(plain.gradients, seen.batch_size, seen.image_shape)
    step = replace(live.step, observation=observation, tape=tape, undefended=None)
    first = replace(live, step=step, masks_known=known)
    values = {f.name: getattr(session, f.name) for f in fields(Session)}
    values["first"] = first
    return RecordedSession(
        **values, update=update, left_out=fitted.left_out, scale_notes=plain.findings
    )


def _masks(update: Update, live: Tape) -> tuple[Tape, bool]:
    """The client's tape if it is known, else one of the same calls."""
    if not live.active:
        return live, True
    own = Tape.of_steps(update.masks)
    if len(update.masks) != update.facts.local_steps:
        return live, False
    kinds = [[(d.path, d.kind, d.p) for d in t] for t in (own, live)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            "update.masks",
            expected="the dropout calls that this model makes",
            got="others",
            hint="The masks are of another model, or of another mode of it.",
        )
    device = next((d.value.device for d in live if d.value is not None), None)
    values = [None if d.value is None else d.value.to(device) for d in own]
    return own.with_values(values), True


def _as_update(given: Any) -> Update:
    if isinstance(given, Update):
        return given
    inner = getattr(given, "update", None)
    if isinstance(inner, Update):
        return inner
    if isinstance(given, Mapping):
        return Update.from_gradients(given)
    if isinstance(given, str) or hasattr(given, "__fspath__"):
        return Update.load(given)
    raise ConfigError(
        "Auditor.attack_gradient(update)",
        expected="a file, an Update, or a mapping from names to gradients",
        got=type(given).__name__,
        hint="Pass what step.save(path) wrote.",
    )


def _require_size(batch_size: Any) -> None:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):
        got = repr(batch_size)
    elif batch_size >= 1:
        return
    else:
        got = str(batch_size)
    raise ConfigError(
        "Auditor.attack_gradient(batch_size=)",
        expected="the number of images in the step, at least 1",
        got=got,
        hint="Clients often send it; it is how many images the step used in all.",
    )


def _set_modes(model: nn.Module, update: Update, config: AuditConfig) -> Any:
    """Modes as in the recorded step, where they were noted.

    Returns:
        The client's mode for the record.
    """
    if config.client.mode == "as_is" or update.facts.mode in (None, "train"):
        return config.client.mode
    if update.facts.mode == "eval":
        model.eval()
    return "as_is"


def _split(truth: Any) -> tuple[Any, Any]:
    """(images, labels); images are None where only labels, or nothing, is given."""
    if truth is None:
        return None, None
    if isinstance(truth, tuple) and len(truth) == 2 and truth[0] is None:
        return None, truth[1]
    return truth, None


def _shape(request: Request, update: Update, model: nn.Module) -> tuple[int, int, int]:
    shape = request.image_shape or update.facts.image_shape
    if shape is not None:
        channels, height, width = shape
        return channels, height, width
    try:
        return stated_input_shape(model)
    except ConfigError as error:
        raise ConfigError(
            "Auditor.attack_gradient(image_shape=)",
            expected="(channels, height, width) of the model's input",
            got="none in the update, and the model does not state it",
            hint="Pass image_shape=(3, 224, 224), or the truth.",
        ) from error


def _stand_ins(count: int, shape: tuple[int, int, int]) -> Tensor:
    """Photographs of nobody's data: their step shows what the model draws."""
    images = shipped_images(min(count, 64), shape)
    return images[torch.arange(count) % len(images)]


def _require_truth(session: Session, request: Request, update: Update) -> None:
    count = len(session.sample.images)
    wanted = request.batch_size * session.config.client.local_steps
    if count != wanted or session.sample.skipped:
        raise ConfigError(
            "Auditor.attack_gradient(truth=)",
            expected=f"all {wanted} images of the step"
            + ("s" if wanted > request.batch_size else ""),
            got=f"{count}, and {len(session.sample.skipped)} that cannot be read",
            hint="batch_size is the number of images in the step; pass them all.",
        )
    shape, noted = tuple(session.sample.images.shape[1:]), update.facts.image_shape
    if noted is not None and shape != tuple(noted):
        raise ConfigError(
            "Auditor.attack_gradient(truth=)",
            expected=f"images of shape {tuple(noted)}, as in the recorded step",
            got=str(shape),
            hint="Pass them as the model took them, before normalisation.",
        )
