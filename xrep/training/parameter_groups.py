"""The learning rate and the weight decay of each parameter: options that all optimizers share.

Patterns are globs (``*``, ``?``, ``[...]``) over dotted names such as ``model.encoders.shared.layers.3.norm.weight``.
A pattern matches a parameter by its full name, by its name without the leading ``model.``, or by any beginning of
either that ends at a dot: ``encoders.source`` matches everything in that tower, ``*_norm`` every module with such a
name.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrep.config.fields import NotNegative
from xrep.errors import UserError
from xrep.registry import nearest

if TYPE_CHECKING:  # the options are read for --help, which does not wait for torch
    from torch import nn

NAMES_SHOWN = 6


@dataclass(kw_only=True)
class ParameterOptions:
    """Options of every optimizer."""

    lr: NotNegative = 5e-4
    """Peak learning rate."""
    weight_decay: NotNegative = 1e-4
    """Decoupled weight decay of matrices; biases, normalisation weights and scalars never decay."""
    lr_multipliers: list[str] = field(default_factory=list)
    """Factors for the learning rate of some parameters, as PATTERN=FACTOR, such as 'criterion.*=10'. If several
    patterns match a parameter, the last one applies."""

    def problems(self) -> list[str]:
        problems = list[str]()
        for text in self.lr_multipliers:
            pattern, factor = _multiplier(text)
            if not pattern or not 0 <= factor < math.inf:
                problems.append(f"lr_multipliers must be PATTERN=FACTOR with a factor of at least 0, not {text!r}")
        return problems


def _multiplier(text: str) -> tuple[str, float]:
    """Return pattern and factor of PATTERN=FACTOR; a factor that is not a number is nan."""
    pattern, _, factor = text.rpartition("=")
    try:
        return pattern, float(factor)
    except ValueError:
        return pattern, math.nan


def parameter_groups(options: ParameterOptions, trained: list[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Return groups for a torch optimizer, one for each pair of rate and decay, in the order of their first parameters.

    Each has ``params``, ``lr``, ``lr_scale`` (its share of the peak rate), ``weight_decay``, and ``decays``, which says
    whether its parameters are of the kind that decays, even if the weight decay is 0.

    Args:
        trained: every parameter that trains at some step, by name.

    Raises:
        UserError: a pattern matches no parameter that trains.
    """
    own = [name for name, _ in trained]
    scales = dict.fromkeys(own, 1.0)
    for text in options.lr_multipliers:
        pattern, factor = _multiplier(text)
        scales.update(dict.fromkeys(matching(pattern, own, "lr_multipliers"), factor))
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in trained:
        scale, decays = scales[name], parameter.ndim >= 2
        new = {"params": [], "lr": options.lr * scale, "lr_scale": scale, "decays": decays}
        new["weight_decay"] = options.weight_decay if decays else 0.0
        groups.setdefault((scale, decays), new)["params"].append(parameter)
    return list(groups.values())


def matching(pattern: str, names: list[str], option: str) -> list[str]:
    """Return the names that a pattern matches (see the top of this file), in their order.

    Raises:
        UserError: the pattern matches no name; the error shows the option, the pattern and similar names.
    """
    forms = [f"{start}{pattern}{end}" for start in ("", "model.") for end in ("", ".*")]
    matched = [name for name in names if any(fnmatch.fnmatchcase(name, form) for form in forms)]
    if not matched:
        places = [[*itertools.accumulate(name.split("."), "{}.{}".format)] for name in names]
        places += [[place.removeprefix("model.") for place in own] for own in places]
        known = dict.fromkeys(".".join(name.split(".")[:3]) for name in names)
        shown = ", ".join([*known][:NAMES_SHOWN]) + (", ..." if len(known) > NAMES_SHOWN else "")
        near = nearest(pattern.rstrip(".*"), [place for own in places for place in own])
        raise UserError(f"{option}: {pattern!r} matches no parameter that trains", cure=near or f"known: {shown}")
    return matched
