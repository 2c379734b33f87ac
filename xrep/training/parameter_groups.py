"""The learning rate and the weight decay of each parameter: options that all optimizers share.

Patterns are globs (``*``, ``?``, ``[...]``) over dotted names such as ``model.encoders.shared.layers.3.norm.weight``.
A pattern matches a parameter by its full name, by its name without the leading ``model.``, or by any beginning of
either that ends at a dot: ``encoders.source`` matches everything in that tower, ``*_norm`` every module with such a
name.
"""

from __future__ import annotations

import difflib
import fnmatch
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrep.errors import UserError

if TYPE_CHECKING:  # the options are read for --help, which does not wait for torch
    from torch import nn

LAYER = re.compile(r"(model\..+?)\.layers\.(\d+)\.")
NAMES_SHOWN = 6


@dataclass(kw_only=True)
class ParameterOptions:
    """Options of every optimizer."""

    lr: float = 5e-4
    """Peak learning rate."""
    weight_decay: float = 1e-4
    """Decoupled weight decay of matrices; biases, normalisation weights and scalars never decay."""
    no_decay: list[str] = field(default_factory=list)
    """Name patterns of further parameters without weight decay, such as '*_embedding'."""
    lr_multipliers: list[str] = field(default_factory=list)
    """Factors for the learning rate of some parameters, as PATTERN=FACTOR, such as 'criterion.*=10'. If several
    patterns match a parameter, the last one applies."""
    layer_decay: float = 1.0
    """Factor by which the learning rate falls from each encoder layer to the one below. In an encoder with L layers,
    the rate of layer k = 0, 1, ... is multiplied by this to the power L - k, that of its parameters outside the layers
    (embeddings and their normalisation) by this to the power L + 1; everything else has the full rate. 1: no decay."""

    def problems(self) -> list[str]:
        problems = []
        for name in ("lr", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                problems.append(f"{name} must be a number of at least 0, not {getattr(self, name)}")
        if not 0 < self.layer_decay <= 1:
            problems.append(f"layer_decay must lie in (0, 1], not {self.layer_decay}")
        for given in self.lr_multipliers:
            pattern, factor = _multiplier(given)
            if not pattern or not 0 <= factor < math.inf:
                problems.append(f"lr_multipliers must be PATTERN=FACTOR with a factor of at least 0, not {given!r}")
        return problems


def _multiplier(given: str) -> tuple[str, float]:
    """Return pattern and factor of PATTERN=FACTOR; a factor that is not a number is nan."""
    pattern, _, factor = given.rpartition("=")
    try:
        return pattern, float(factor)
    except ValueError:
        return pattern, math.nan


def parameter_groups(
    options: ParameterOptions, named_parameters: list[tuple[str, nn.Parameter]]
) -> list[dict[str, Any]]:
    """Return groups for a torch optimizer, one for each pair of rate and decay, in the order of their first parameters.

    Each has ``params``, ``lr``, ``lr_scale`` (its share of the peak rate), ``weight_decay``, and ``decays``, which says
    whether its parameters are of the kind that decays, even if the weight decay is 0.

    Raises:
        UserError: a pattern matches no parameter, or there are no layers for ``layer_decay``.
    """
    names = [name for name, _ in named_parameters]
    exempt = {name for pattern in options.no_decay for name in matching(pattern, names, "no_decay")}
    scales = _scales(options, names)
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, parameter in named_parameters:
        decays = parameter.ndim >= 2 and name not in exempt
        group = groups.setdefault((scales[name], decays), {"params": []})
        group["params"].append(parameter)
    for (scale, decays), group in groups.items():
        decay = options.weight_decay if decays else 0.0
        group.update(lr=options.lr * scale, lr_scale=scale, weight_decay=decay, decays=decays)
    return list(groups.values())


def _scales(options: ParameterOptions, names: list[str]) -> dict[str, float]:
    scales = dict.fromkeys(names, 1.0)
    for given in options.lr_multipliers:
        pattern, factor = _multiplier(given)
        scales.update(dict.fromkeys(matching(pattern, names, "lr_multipliers"), factor))
    if options.layer_decay == 1.0:
        return scales
    exponents = layer_exponents(names)
    if not exponents:
        raise UserError("layer_decay: no layer of the model trains", cure="leave it at 1")
    return {name: scale * options.layer_decay ** exponents.get(name, 0) for name, scale in scales.items()}


def layer_exponents(names: Iterable[str]) -> dict[str, int]:
    """Return the exponent of ``layer_decay`` for each parameter of a stack: L - k in layer k, L + 1 outside the layers.

    A stack is a module within the model that has ``layers.0`` and so on; L counts the layers up to the last one that
    is among ``names``.
    """
    names = list(names)
    found = {name: match for name in names if (match := LAYER.match(name))}
    depths: dict[str, int] = {}
    for match in found.values():
        depths[match[1]] = max(depths.get(match[1], 0), int(match[2]) + 1)
    exponents = {}
    for name in names:
        stack = next((stack for stack in depths if name.startswith(f"{stack}.")), None)
        if stack is not None:
            depth = depths[stack]
            exponents[name] = depth - int(found[name][2]) if name in found else depth + 1
    return exponents


def matching(pattern: str, names: list[str], option: str) -> list[str]:
    """Return the names that a pattern matches (see the top of this file), in their order.

    Raises:
        UserError: the pattern matches no name; the error shows the option, the pattern and similar names.
    """
    matches = re.compile(fnmatch.translate(pattern)).match
    found = [name for name in names if any(matches(form) for form in _forms(name))]
    if not found:
        problem = f"{option}: {pattern!r} matches no parameter that trains"
        raise UserError(problem, cure=_nearest(pattern, names))
    return found


def _forms(name: str) -> list[str]:
    """Return what a pattern may match: the name and its beginnings up to a dot, with and without ``model.``."""
    short = name.removeprefix("model.")
    return [form[:end] for form in {name: None, short: None} for end in _ends(form)]


def _ends(name: str) -> list[int]:
    return [position for position, letter in enumerate(name) if letter == "."] + [len(name)]


def _nearest(pattern: str, names: list[str]) -> str:
    known = list(dict.fromkeys(form for name in names for form in _forms(name)))
    near = difflib.get_close_matches(pattern.rstrip(".*"), known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(repr(name) for name in near)}?"
    shown = list(dict.fromkeys(".".join(name.split(".")[:3]) for name in names))
    return "known: " + ", ".join(shown[:NAMES_SHOWN]) + (", ..." if len(shown) > NAMES_SHOWN else "")
