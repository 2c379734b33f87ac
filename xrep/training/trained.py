"""What a run trains: parameters that are not frozen, or low-rank changes of them, by an optimizer or shares of one."""

from __future__ import annotations

from functools import partial

from xrep.config import RunConfig
from xrep.nn.encoder import TransformerEncoder
from xrep.nn.static import StaticEncoder
from xrep.training.distributed import World
from xrep.training.freezing import Freezing
from xrep.training.lora import LowRank
from xrep.training.numbers import type_on
from xrep.training.parameter_groups import parameter_groups
from xrep.training.row_adamw import RowAdamW
from xrep.training.sharding import sharded_optimizer
from xrep.training.step import Pair
from xrep.training.update import Update


def what_trains(pair: Pair, run: RunConfig, world: World) -> tuple[Freezing, Update]:
    """Return what is frozen, and what changes everything else by its gradients.

    Low-rank changes join the criterion, with which they are saved, as they are not kept after training.

    Raises:
        UserError: an option names parameters that there are not, or nothing is left to train.
    """
    config, options = run.configs["trainer"], run.configs["optimizer"]
    frozen, adapted, lora = [*config.freeze, *pair.criterion.frozen], dict[str, str](), None
    if config.lora_rank:
        known = {name.removeprefix("model.") for name, _ in Freezing(frozen, pair).ever_trained()}
        lora = LowRank(pair.model, known, config.lora_rank, config.lora_alpha)
        frozen += [f"model.{name}" for name in lora.others]
        adapted = {
            f"criterion.lora.{side}.{n}": f"model.{name}" for side in "ab" for n, name in enumerate(lora.targets)
        }
    freezing = Freezing(frozen, pair)
    if lora is not None:
        pair.criterion.add_module("lora", lora)
        freezing.thaw |= dict.fromkeys(adapted, 0.0)
    targets = set(adapted.values())
    # The factors of a weight have its name, by which options choose rates.
    trained = [(adapted.get(name, name), own) for name, own in freezing.ever_trained() if name not in targets]
    groups = parameter_groups(options, trained)
    make = partial(run.classes["optimizer"].build, options)
    sharded = run.configs["distributed"].shard == "optimizer" and world.size > 1
    optimizer = sharded_optimizer(groups, make) if sharded else make(groups)
    if isinstance(optimizer, RowAdamW) and world.size == 1 and world.device.type == "cpu":
        for encoder in [part for part in pair.modules() if isinstance(part, TransformerEncoder | StaticEncoder)]:
            encoder.token_embedding.sparse = True  # its gradient has only the rows of the tokens that a batch has
    dtype = type_on(world.device, config.precision)
    return freezing, Update(optimizer, world, clip_norm=config.clip_norm, dtype=dtype, lora=lora)
