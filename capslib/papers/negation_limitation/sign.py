"""The sign of a scalar (§5.1, Table 1)."""

from __future__ import annotations

from pydantic import Field

from capslib.costs import Work, steps
from capslib.papers.common import abscissa, differences, flattening, thinned
from capslib.papers.negation_limitation import stacks
from capslib.trials import Config, Context, Deviation, Metric, Outcome, Scale


class SignConfig(Config):
    """The sign of a scalar. Defaults are the paper's setting, as its first release has it."""

    routing: stacks.RoutingName
    bias: bool
    points: int = Field(20_000, ge=2, le=10_000_000, title="points")
    epochs: int = Field(50, ge=1, le=10_000, title="epochs")
    batch_size: int = Field(256, ge=1, title="batch size")
    learning_rate: float = Field(5e-3, gt=0, le=1, title="Adam learning rate")
    hidden: int = Field(20, ge=1, title="hidden capsules")
    weight_std: float = Field(0.5, gt=0, title="standard deviation of W at the start, and value of the bias")
    iterations: int = Field(3, ge=1, le=20, title="routing iterations")
    length_offset: float = Field(1e-8, ge=0, title="added to the length of EM vector capsules")


def run(config: SignConfig, context: Context) -> Outcome:
    """Train the 1–20–2 network on the symmetric grid of scalars; the accuracy is on the training points, as in Table 1."""
    import torch

    from capslib.losses import margin_loss
    from capslib.networks.negation_limitation import SignNetwork
    from capslib.training import accuracy, fit, seeded

    with seeded(context.seed):
        options = {} if config.routing == "dynamic" else {"beta_std": config.weight_std, "length_offset": config.length_offset}
        network = SignNetwork(
            config.hidden,
            routing=config.routing,
            iterations=config.iterations,
            weight_std=config.weight_std,
            bias=config.weight_std if config.bias else None,
            **options,
        ).to(context.device)
    x = torch.linspace(0, 1, config.points // 2 + 1, device=context.device)
    x, y = torch.cat([-x, x]), torch.cat([torch.zeros_like(x), torch.ones_like(x)]).long()

    def loss(model: SignNetwork, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = model(inputs)
        return margin_loss(scores, targets, down_weight=1.0), scores

    history = fit(
        network, x, y, loss=loss, optimizer=torch.optim.Adam(network.parameters(), config.learning_rate),
        epochs=config.epochs, batch_size=config.batch_size, context=context,
        evaluate=lambda model: {"train_accuracy": accuracy(model, x, y, batch_size=len(x))},
    )  # fmt: skip
    return Outcome(
        metrics={
            "train_accuracy": Metric(value=history.epochs["train_accuracy"][-1], n=len(x), unit="fraction"),
            "loss_change_last_quarter": flattening(history),
        },
        series={"epochs": abscissa(config.epochs), "train_accuracy": history.epochs["train_accuracy"], **thinned(history)},
        parameters=sum(p.numel() for p in network.parameters()),
        routing_path=history.routing_path,
    )


def grid(scale: Scale) -> list[SignConfig]:
    budget = {"points": 2_000, "epochs": 45} if scale == "smoke" else {}
    arms = [SignConfig(routing=r, bias=b, **budget) for r in ("dynamic", "em_vector") for b in (False, True)]
    return [*arms, SignConfig(routing="em_vector", bias=True, length_offset=0, **budget)]  # a control: does the offset matter?


def work(config: SignConfig) -> Work:
    sizes = [(1, 1), (config.hidden, 1), (2, 1)]
    layers = stacks.layers(config.routing, config.batch_size, sizes, config.iterations)
    points = config.points + 2
    return Work(steps(config.epochs, config.batch_size, points, points), tuple(layers))


def deviations(config: SignConfig) -> list[Deviation]:
    setting = SignConfig(routing=config.routing, bias=config.bias)
    return [
        *differences(config, setting, {"routing", "bias", "length_offset"}, "budget of this scale"),
        Deviation(what="reported accuracy", paper="running mean over the last batches", ours="all training points after the last epoch",
                  why="on the whole symmetric set an odd network is right on exactly one point of every pair"),
        *stacks.deviations(config.routing),
    ]  # fmt: skip
