"""What is audited, and how: opens the session that a sample asks for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privaudit._guard import pristine
from privaudit._pixels import Normalisation
from privaudit._session import Session
from privaudit._token_session import TokenSession, open_token_session
from privaudit._tokens import is_tokens
from privaudit.config import AuditConfig, Split
from privaudit.errors import ConfigError
from privaudit.session.feature_opening import SentFeatures, open_feature_session
from privaudit.session.features import FeatureSession
from privaudit.session.gradient_opening import open_session
from privaudit.session.stances import Defended

if TYPE_CHECKING:
    import torch
    from torch import nn

    from privaudit.inventory import Finding


@dataclass(frozen=True, eq=False)
class Subject:
    """One model with the settings of its audits. The model is pristine around each.

    Attributes:
        model: Without wrappers, where it is to run.
        config: The settings that reach disk.
        normalisation: From [0, 1] pixels to what the model takes.
        notes: Findings made before.
        callables: The user's loss and training step.
        priors: What an attacker on features has beside the model.
        defended: What stands in between, and what the attacker does about it.
    """

    model: nn.Module
    config: AuditConfig
    normalisation: Normalisation
    notes: Sequence[Finding]
    callables: tuple[
        Callable[..., torch.Tensor] | None, Callable[..., torch.Tensor] | None
    ]
    priors: Mapping[str, object]
    defended: Defended

    @contextmanager
    def features(
        self, sample: Any, split: Split | None = None, sent: SentFeatures | None = None
    ) -> Iterator[FeatureSession]:
        """A session at a cut: that of the settings, or another."""
        started = time.monotonic()
        config = self.config
        if split is not None:
            config = config.model_copy(update={"split": split})
        with pristine(self.model), differentiable():
            yield open_feature_session(
                self.model,
                sample,
                config=config,
                normalisation=self.normalisation,
                notes=self.notes,
                priors=self.priors,
                started=started,
                sent=sent,
                defended=self.defended,
            )

    @contextmanager
    def tokens(self, sample: Any) -> Iterator[TokenSession]:
        """A session of a model on token ids.

        Raises:
            ConfigError: Defenses were stated: none of token ids is known here.
        """
        if self.defended.defenses:
            raise ConfigError(
                "Auditor.defenses",
                expected="none: the sample is token ids",
                got=", ".join(d.name for d in self.defended.defenses),
                hint="Defenses act on gradients of images, or on features.",
            )
        started = time.monotonic()
        with pristine(self.model), differentiable():
            yield open_token_session(
                self.model,
                sample,
                config=self.config,
                notes=self.notes,
                callables=self.callables,
                started=started,
            )

    @contextmanager
    def images(self, sample: Any) -> Iterator[Session]:
        """A session of training steps on images."""
        started = time.monotonic()
        with pristine(self.model), differentiable():
            yield self.session(sample, self.config, started)

    def session(self, sample: Any, config: AuditConfig, started: float) -> Session:
        """The same inside a guard that is there already."""
        if is_tokens(self.model, sample):
            raise ConfigError(
                "sample",
                expected="images: token ids are taken by audit() and inventory() only",
                got="token ids",
                hint="Use audit((ids, labels)); it takes seconds and needs no plan.",
            )
        return open_session(
            self.model,
            sample,
            config=config,
            normalisation=self.normalisation,
            notes=self.notes,
            callables=self.callables,
            started=started,
            defended_by=self.defended,
        )


@contextmanager
def differentiable() -> Iterator[None]:
    """Gradients exist inside, whatever the caller's own mode is."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        yield
