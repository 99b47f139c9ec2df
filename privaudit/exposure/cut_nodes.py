"""Cuts at a node of a traced graph, where the value is no module's output.

Such as ``layer1.0.add`` of a torchvision ResNet. The graph is interpreted on the user's
own modules, so that their weights and hooks are used; no copy of the model is made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from privaudit.errors import ConfigError
from privaudit.exposure import _outputs
from privaudit.exposure.cut import Forward, cut_conditions

if TYPE_CHECKING:
    from torch.fx import Graph, Node


class _ArgumentsError(Exception):
    """Carries what the model is called with; the call itself is not made."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.args_given, self.kwargs_given = args, kwargs


@dataclass(frozen=True, eq=False)
class NodeCut:
    """One value of a traced model; same methods as :class:`~privaudit.exposure.Cut`.

    Attributes:
        path: Name of the node, as ``torchvision.models.feature_extraction`` gives it.
        graph: The traced forward pass, in the mode in which it was traced.
        node: The value that is sent.
        select: Which element of it, where that is a tuple, dict or dataclass.
        chosen: The same in words, where there was a choice.
    """

    path: str
    graph: Graph
    node: Node
    select: int | str | None = None
    chosen: str = ""

    @property
    def name(self) -> str:
        """As users write it."""
        return self.path

    def capture(self, model: nn.Module, forward: Forward) -> Tensor:
        """What is sent, with its graph; the forward pass stops there.

        Raises:
            ConfigError: The node is no tensor of floats.
        """
        with cut_conditions(model):
            return _outputs.chosen(
                self.value(model, forward), self.select, self.name
            ).clone()

    def value(self, model: nn.Module, forward: Forward) -> Any:
        """All that the node holds, of which one element is sent."""
        return self._run(model, forward, None)

    def finish(self, model: nn.Module, forward: Forward, features: Tensor) -> Any:
        """The model's output when ``features`` stand where the cut is.

        Raises:
            ConfigError: The node is no tensor of floats.
        """
        with cut_conditions(model):
            return self._run(model, forward, features)

    def _run(self, model: nn.Module, forward: Forward, features: Tensor | None) -> Any:
        """Interpret the graph, up to the node, or whole with the node exchanged."""
        from torch.fx import Interpreter

        args = self._arguments(model, forward)
        runner = Interpreter(model, graph=self.graph)
        runner.extra_traceback = False
        runner.args_iter = iter(self.graph.process_inputs(*args))
        for node in self.graph.nodes:
            value = runner.run_node(node)
            if node is self.node:
                if features is None:
                    return value
                key = self.select
                if key is None:
                    key = _outputs.main_key(value, self.name)
                value = _outputs.replaced(value, key, features.clone())
            if node.op == "output":
                return self.graph.process_outputs(value)
            runner.env[node] = value
        raise ConfigError(
            f"split {self.name}",
            expected="a traced graph with an output",
            got="none",
            hint="Cut at a module instead.",
        )

    def _arguments(self, model: nn.Module, forward: Forward) -> list[Any]:
        """What ``forward`` calls the model with, in the order of the graph's inputs."""

        def take(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _ArgumentsError(args, kwargs)

        handle = model.register_forward_pre_hook(take, with_kwargs=True)
        try:
            forward()
        except _ArgumentsError as call:
            named = [n for n in self.graph.nodes if n.op == "placeholder"]
            rest = [
                call.kwargs_given.get(str(n.target), n.args[0] if n.args else None)
                for n in named[len(call.args_given) :]
            ]
            return [*call.args_given, *rest]
        finally:
            handle.remove()
        raise ConfigError(
            f"split {self.name}",
            expected="a forward pass that calls the model",
            got="none",
            hint="Pass the module itself.",
        )


def find_node(model: nn.Module, name: str) -> NodeCut | None:
    """The node called ``name``; None where there is none or tracing fails."""
    traced = traced_nodes(model)
    for node, title in traced[1].items():
        if title == name and node.op not in ("placeholder", "output"):
            return NodeCut(name, traced[0], node)
    return None


def traced_nodes(model: nn.Module) -> tuple[Graph, dict[Node, str]]:
    """The traced forward pass and the names of its values.

    Empty for models that are neither torchvision's nor timm's, or cannot be traced.
    """
    from torch.fx import Graph

    families = {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
    if not families & {"torchvision", "timm"}:
        return Graph(), {}
    modes = {m: m.training for m in model.modules()}
    try:
        tracer = _tracer("timm" in families)
        return tracer.trace(model), dict(tracer.node_to_qualname)
    except Exception:  # noqa: BLE001 - tracing runs the user's code on stand-ins
        return Graph(), {}
    finally:
        for module, training in modes.items():
            module.training = training


def _tracer(timm: bool) -> Any:
    from torchvision.models.feature_extraction import NodePathTracer

    leaves: list[type[nn.Module]] = []
    functions: list[Any] = []
    if timm:
        from timm.models import _features_fx

        leaves += list(_features_fx.get_notrace_modules())
        functions += list(_features_fx.get_notrace_functions())
    return NodePathTracer(leaf_modules=leaves, autowrap_functions=tuple(functions))
