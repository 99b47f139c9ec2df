"""diffusers and transformers: asked for politely, and kept quiet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from privaudit.errors import MissingDependencyError


def require() -> None:
    """Refuse to go on without diffusers and what its pipelines are made of.

    Raises:
        MissingDependencyError: One is not installed.
    """
    import importlib
    import warnings

    for name in ("diffusers", "transformers"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
        except ImportError as error:
            raise MissingDependencyError(
                "priors['diffusion']", expected=f"the package {name}",
                got=f"{type(error).__name__}: {error}",
                hint='pip install "privaudit[diffusion]"',
            ) from error  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    """No words and no bars of these libraries, and nothing of torch's random state.

    What they were set to before is set again.
    """
    import logging
    import warnings

    import torch

    loggers = [logging.getLogger(n) for n in ("diffusers", "transformers")]
    loggers.append(logging.getLogger("huggingface_hub"))
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), _no_bars():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def _no_bars() -> Iterator[None]:
    from diffusers.utils import logging as of_diffusers
    from huggingface_hub import utils as of_hub
    from transformers.utils import logging as of_transformers

    hub = of_hub.are_progress_bars_disabled()
    switches = [
        (words.is_progress_bar_enabled(), words)
        for words in (of_diffusers, of_transformers)
    ]
    for _, words in switches:
        words.disable_progress_bar()
    of_hub.disable_progress_bars()
    try:
        yield
    finally:
        for was, words in switches:
            if was:
                words.enable_progress_bar()
        if hub:
            of_hub.disable_progress_bars()
        else:
            of_hub.enable_progress_bars()
