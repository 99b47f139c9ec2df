"""Trains an inverse network for a cut and keeps it as a file, for later audits."""

from __future__ import annotations

from pathlib import Path

import torch

from privaudit._progress import labelled
from privaudit.attacks import InverseNetwork
from privaudit.attacks._inverse_file import save
from privaudit.attacks._inverse_training import Trained, train
from privaudit.session.features import FeatureSession


def train_inverse_network(
    session: FeatureSession, settings: InverseNetwork, path: Path
) -> Trained:
    """Train on the session's public images within its budget, and write the file.

    Ctrl-C ends the training and keeps what was learnt.

    Args:
        session: Opened with ``public_images`` among its priors.
        settings: Size of the network, and how it is trained.
        path: Where to, ``.safetensors``.

    Raises:
        ConfigError: There are no public images, or the place cannot be written.
    """
    target = session.target()
    generator = torch.Generator().manual_seed(session.config.seed)
    with labelled(f"inverse network at {session.split.name}"):
        trained = train(
            target, settings, budget=session.config.budget, generator=generator
        )
    shape = session.sample.images.shape[1:]
    save(path, trained, target, settings.settings(), (shape[0], shape[1], shape[2]))
    return trained
