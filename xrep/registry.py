"""Registries that map the names of parts (tasks, models, criteria, ...) to their classes.

A class is imported only when its part is chosen. Other packages can add parts in two ways, which also work under
torchrun:

- an entry point in the group ``xrep.plugins`` named ``<kind>.<name>`` whose value is ``module:Class``
  (``criterion.my_loss = my_package.losses:MyLoss``): nothing is imported until the part is used;
- ``--plugin package.module``: the module is imported and registers its parts itself::

      from xrep.registry import CRITERIA

      @CRITERIA.register("my_loss")
      class MyLoss(Criterion): ...
"""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import operator
import traceback
from collections.abc import Callable
from typing import Any

from xrep.errors import UserError, shown

ENTRY_POINT_GROUP = "xrep.plugins"


class Registry:
    """The parts of one kind, as a map ``name -> "module:Class"``."""

    def __init__(self, kind: str, targets: dict[str, str]) -> None:
        self.kind, self._targets = kind, dict(targets)

    def register(self, name: str) -> Callable[[type], type]:
        """Return a decorator that adds a class as the part ``name``; it raises UserError as ``add`` does."""

        def decorate(cls: type) -> type:
            self.add(name, f"{cls.__module__}:{cls.__qualname__}")
            return cls

        return decorate

    def add(self, name: str, target: str) -> None:
        """Add a part by its ``module:Class``. Raises UserError, which names both, if another class has the name."""
        known = self._targets.setdefault(name, target)
        if known != target:
            problem = f"the {self.kind} {name!r} is registered twice: by {known} and by {target}"
            raise UserError(problem, cure="rename one of them")

    def __contains__(self, name: Any) -> bool:
        return name in self._targets or name in self.names()

    def names(self) -> list[str]:
        _register_entry_points()
        return sorted(self._targets)

    def target(self, name: str) -> str:
        """Return the ``module:Class`` of a part. Raises UserError, which suggests a name, if there is none."""
        if name not in self:
            raise UserError(f"unknown {self.kind} {shown(name)}", cure=suggestion(name, self.names()))
        return self._targets[name]

    def load(self, name: str) -> type:
        """Import and return the class of a part; raises UserError as ``target`` and ``load_target`` do."""
        return load_target(self.target(name))


def load_target(target: str) -> Any:
    """Import and return the object that ``module:Class`` names. Raises UserError if it cannot be imported."""
    module, _, attribute = target.partition(":")
    try:
        return operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, SyntaxError) as error:
        raise UserError(f"{target} cannot be loaded: {one_line(error)}", cure="mend or reinstall it") from error


def nearest(name: str, known: list[str]) -> str:
    """Return the advice for a misspelt name, "did you mean 'dual_moco'?"; empty if no known name is near."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    return f"did you mean {near[0]!r}?" if near else ""


def suggestion(name: str, known: list[str]) -> str:
    """Return the advice for a misspelt name: the nearest known name, or else all known names."""
    return nearest(name, known) or "known: " + ", ".join(known)


IMPORTED = list[str]()
"""The plugins that were imported, which other processes that load the same parts must import, too."""


def import_plugin(module: str) -> None:
    """Import a module that registers parts. Raises UserError if that raises any exception."""
    try:
        importlib.import_module(module)
        IMPORTED.append(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
        problem = f"the plugin {module!r} cannot be imported: {type(error).__name__}: {one_line(error)}{place}"
        raise UserError(problem, cure="install it, add its folder to PYTHONPATH, or mend it") from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@functools.cache
def _register_entry_points() -> None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        kind, _, name = entry.name.partition(".")
        if kind not in REGISTRIES:
            cure = (
                f"its name must be KIND.NAME, where KIND is one of {', '.join(REGISTRIES)}; mend or remove the package"
            )
            raise UserError(f"the entry point {entry.name!r} ({entry.value}) is no part of xrep", cure=cure)
        REGISTRIES[kind].add(name, entry.value)


TASKS = Registry("task", {
    "bitext": "xrep.tasks.bitext:BitextTask",
    "monolingual": "xrep.tasks.monolingual:MonolingualTask",
    "nli": "xrep.tasks.nli:NliTask",
    "similarity": "xrep.tasks.similarity:SimilarityTask",
    "translation": "xrep.tasks.translation:TranslationTask",
})  # fmt: skip
MODELS = Registry("model", {
    "dual_encoder": "xrep.models.dual_encoder:DualEncoder",
    "translation": "xrep.models.translation:Translation",
})  # fmt: skip
ENCODERS = Registry("encoder", {
    "static": "xrep.nn.static:StaticEncoder",
    "transformer": "xrep.nn.encoder:TransformerEncoder",
    "transformers": "xrep.interop.transformers_encoder:TransformersEncoder",
})  # fmt: skip
CRITERIA = Registry("criterion", {
    "angle": "xrep.criteria.angle:Angle",
    "cmlm": "xrep.criteria.cmlm:CMLM",
    "cosent": "xrep.criteria.cosent:CoSENT",
    "dap": "xrep.criteria.dap:DAP",
    "dual_moco": "xrep.criteria.dual_moco:DualMoco",
    "frozen_source": "xrep.criteria.frozen_source:FrozenSource",
    "hictl": "xrep.criteria.hictl:HiCTL",
    "label_smoothed_cross_entropy": "xrep.criteria.label_smoothed_cross_entropy:LabelSmoothedCrossEntropy",
    "mlm": "xrep.criteria.mlm:MLM",
    "nli": "xrep.criteria.nli:Nli",
    "nli_triplet": "xrep.criteria.nli_triplet:NliTriplet",
    "simcse": "xrep.criteria.simcse:SimCSE",
    "tlm": "xrep.criteria.tlm:TLM",
    "translation_ranking": "xrep.criteria.translation_ranking:TranslationRanking",
})  # fmt: skip
OPTIMIZERS = Registry("optimizer", {
    "adamw": "xrep.training.optim:AdamW",
    "lamb": "xrep.training.optim:Lamb",
    "sgd": "xrep.training.optim:SGD",
})  # fmt: skip
LR_SCHEDULERS = Registry("lr_scheduler", {
    "constant": "xrep.training.schedule:Constant",
    "cosine": "xrep.training.schedule:Cosine",
    "inverse_sqrt": "xrep.training.schedule:InverseSqrt",
    "linear": "xrep.training.schedule:LinearDecay",
})  # fmt: skip
VALIDATORS = Registry("validation", {
    "loss": "xrep.validation.loss:LossValidator",
    "nli": "xrep.validation.nli:NliValidator",
    "retrieval": "xrep.validation.retrieval:RetrievalValidator",
    "several": "xrep.validation.several:SeveralValidator",
    "sts": "xrep.validation.sts:StsValidator",
    "translation": "xrep.validation.translation:TranslationValidator",
})  # fmt: skip
EVALUATIONS = Registry("evaluation", {
    "alignment": "xrep.evaluation.alignment:Alignment",
    "all": "xrep.evaluation.all:All",
    "bucc": "xrep.evaluation.bucc:Bucc",
    "language-bias": "xrep.evaluation.language_bias:LanguageBias",
    "nli": "xrep.evaluation.nli:NliAccuracy",
    "scatter": "xrep.evaluation.scatter:Scatter",
    "senteval": "xrep.evaluation.senteval.evaluate:SentEval",
    "sts": "xrep.evaluation.sts:Sts",
    "tatoeba": "xrep.evaluation.tatoeba:Tatoeba",
    "translation": "xrep.evaluation.translation:TranslationQuality",
    "xsim": "xrep.evaluation.xsim:XSim",
    "xtreme": "xrep.evaluation.xtreme:Xtreme",
})  # fmt: skip
FORMATS = Registry("format", {})  # of text that --exclude reads; the usual ones need no class of their own
PREDICTORS = Registry("predictor", {})  # for xrep-predict; each has the name of the model that it uses
FIXED_SECTIONS = {
    "trainer": "xrep.training.trainer:Trainer",
    "checkpoint": "xrep.training.checkpoint:Checkpoints",
    "distributed": "xrep.training.distributed:World",
    "logging": "xrep.training.log:Log",
}
"""Sections of every configuration whose class is fixed instead of chosen by name."""
MIXTURE = {"task": "xrep.tasks.mixture:MixtureTask", "criterion": "xrep.criteria.multitask:Multitask"}
"""The task and the criterion of a run with several parts, which combine those of the parts."""
_ALL = TASKS, MODELS, ENCODERS, CRITERIA, OPTIMIZERS, LR_SCHEDULERS, VALIDATORS, EVALUATIONS, FORMATS, PREDICTORS
REGISTRIES = {registry.kind: registry for registry in _ALL}
