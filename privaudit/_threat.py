"""What the attacker of an audit of images sees, knows, and does not know."""

from __future__ import annotations

from privaudit.config import AuditConfig, Client
from privaudit.result import ThreatModel


def threat_model(
    config: AuditConfig, *, images: int, trainable: int, gradient: str
) -> ThreatModel:
    """The threat model that every number of an audit holds for.

    Args:
        config: Client, and what is known of the labels.
        images: Of one client, in all its steps.
        trainable: How many values it shares.
        gradient: How exact they are, in words.
    """
    client = config.client
    knows = ["the model and its weights", "the loss", "mean and std of the images",
             "where dropout sits, and its rates"]  # fmt: skip
    hidden = ["the images", "the dropout masks that the client drew"]
    (knows if config.knowledge.labels == "known" else hidden).append("the labels")
    if client.local_steps > 1:
        knows.append(
            "how the client trains: steps, images a step, optimiser, learning rate"
        )
    shared = f"{trainable} parameters, {gradient}"
    return ThreatModel(
        exposure=_exposure(client),
        attacker="honest-but-curious server of a federated training",
        sees=[f"{_sent(client)} of {shared}, {_made(client, images)}"],
        knows=knows,
        does_not_know=hidden,
    )


def _exposure(client: Client) -> str:
    if client.local_steps > 1:
        return f"weight difference after {client.local_steps} local training steps"
    if client.optimizer == "adamw":
        return "weight difference after one local training step of AdamW"
    return "gradient of one local training step"


def _sent(client: Client) -> str:
    if client.local_steps > 1 or client.optimizer == "adamw":
        return "the weight difference, divided by the learning rate,"
    return "the gradient"


def _made(client: Client, images: int) -> str:
    if client.local_steps == 1:
        return f"of one step on {images} image(s)"
    each = images // client.local_steps
    rate = f"learning rate {client.lr:g}"
    momentum = f", momentum {client.momentum:g}" if client.momentum else ""
    return (
        f"of {client.local_steps} steps of {client.optimizer.upper()} ({rate}"
        f"{momentum}) on {each} image(s) each"
    )
