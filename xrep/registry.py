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
    """The parts of one kind, as a map ``name -> "module:Class"``.

    Args:
        contract: ``module:Class`` of the base class that every part has; None if there is none.
    """

    def __init__(self, kind: str, targets: dict[str, str], contract: str | None = None) -> None:
        self.kind, self.contract = kind, contract
        self._targets = dict(targets)

    def register(self, name: str, target: str | None = None) -> Callable[[type], type]:
        """Add a part, either as a decorator of its class or by a call with ``target="module:Class"``.

        Raises:
            UserError: If another class has the name; the message names both.
        """
        if target is not None:
            self._add(name, target)

        def decorate(cls: type) -> type:
            self._add(name, f"{cls.__module__}:{cls.__qualname__}")
            return cls

        return decorate

    def _add(self, name: str, target: str) -> None:
        known = self._targets.get(name)
        if known is not None and known != target:
            raise UserError(
                f"the {self.kind} {name!r} is registered twice: by {known} and by {target}", cure="rename one of them"
            )
        self._targets[name] = target

    def names(self) -> list[str]:
        _register_entry_points()
        return sorted(self._targets)

    def target(self, name: str) -> str:
        """Return the ``module:Class`` of a part.

        Raises:
            UserError: If there is no such part; the message suggests the nearest name, or lists all names.
        """
        if name not in self._targets:
            names = self.names()
            if name not in names:
                raise UserError(f"unknown {self.kind} {shown(name)}", cure=suggestion(name, names))
        return self._targets[name]

    def load(self, name: str) -> type:
        """Import and return the class of a part.

        Raises:
            UserError: If it cannot be imported, or is not a subclass of the contract.
        """
        target = self.target(name)
        cls = load_target(target)
        if self.contract is not None and not (isinstance(cls, type) and issubclass(cls, load_target(self.contract))):
            cure = f"derive it from {self.contract.replace(':', '.')}, whose docstring says what a {self.kind} has"
            raise UserError(f"{target} is not a {self.kind}", cure=cure)
        return cls


def load_target(target: str) -> Any:
    """Import and return the object that ``module:Class`` names.

    Raises:
        UserError: If its module cannot be imported or lacks the class.
    """
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
    """Import a module that registers parts.

    Raises:
        UserError: If importing it raises any exception, or it registers a name that another part has.
    """
    try:
        importlib.import_module(module)
        IMPORTED.append(module)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        cure = "install it, add its folder to PYTHONPATH, or mend it"
        raise UserError(f"the plugin {module!r} cannot be imported: {described(error)}", cure=cure) from error


def described(error: BaseException) -> str:
    """Return an error of a part's code on one line, with the place where it was raised if that is in another file."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {one_line(error)}{place}"


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@functools.cache
def _register_entry_points() -> None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        kind, _, name = entry.name.partition(".")
        registry = REGISTRIES.get(kind)
        if registry is None or not name:
            raise UserError(
                f"the entry point {entry.name!r} of {entry.value} is not named <kind>.<name>",
                cure="kinds: " + ", ".join(REGISTRIES),
            )
        registry.register(name, entry.value)


TASKS = Registry("task", {
    "bitext": "xrep.tasks.bitext:BitextTask",
    "classification": "xrep.tasks.annotated:ClassificationTask",
    "monolingual": "xrep.tasks.monolingual:MonolingualTask",
    "nli": "xrep.tasks.nli:NliTask",
    "question_answering": "xrep.tasks.annotated:QuestionAnsweringTask",
    "tagging": "xrep.tasks.annotated:TaggingTask",
    "translation": "xrep.tasks.translation:TranslationTask",
}, "xrep.tasks.task:Task")  # fmt: skip
MODELS = Registry("model", {
    "classifier": "xrep.models.classifier:Classifier",
    "dual_encoder": "xrep.models.dual_encoder:DualEncoder",
    "translation": "xrep.models.translation:Translation",
}, "xrep.models.model:Model")  # fmt: skip
ENCODERS = Registry("encoder", {
    "transformer": "xrep.nn.encoder:TransformerEncoder",
    "transformers": "xrep.interop.transformers_encoder:TransformersEncoder",
}, "xrep.nn.encoder:Encoder")  # fmt: skip
CRITERIA = Registry("criterion", {
    "classification": "xrep.criteria.annotated:Classification",
    "cmlm": "xrep.criteria.cmlm:CMLM",
    "dap": "xrep.criteria.dap:DAP",
    "dual_moco": "xrep.criteria.dual_moco:DualMoco",
    "frozen_source": "xrep.criteria.frozen_source:FrozenSource",
    "hictl": "xrep.criteria.hictl:HiCTL",
    "label_smoothed_cross_entropy": "xrep.criteria.label_smoothed_cross_entropy:LabelSmoothedCrossEntropy",
    "mlm": "xrep.criteria.mlm:MLM",
    "nli": "xrep.criteria.nli:Nli",
    "nli_triplet": "xrep.criteria.nli_triplet:NliTriplet",
    "simcse": "xrep.criteria.simcse:SimCSE",
    "span": "xrep.criteria.annotated:Span",
    "tagging": "xrep.criteria.annotated:Tagging",
    "tlm": "xrep.criteria.tlm:TLM",
    "translation_ranking": "xrep.criteria.translation_ranking:TranslationRanking",
}, "xrep.criteria.criterion:Criterion")  # fmt: skip
OPTIMIZERS = Registry("optimizer", {
    "adamw": "xrep.training.optim:AdamW",
    "lamb": "xrep.training.optim:Lamb",
    "sgd": "xrep.training.optim:SGD",
})  # fmt: skip
LR_SCHEDULERS = Registry("lr_scheduler", {
    "constant": "xrep.training.schedule:Constant",
    "cosine": "xrep.training.schedule:Cosine",
    "inverse_sqrt": "xrep.training.schedule:InverseSqrt",
    "linear": "xrep.training.schedule:Linear",
    "polynomial": "xrep.training.schedule:Polynomial",
}, "xrep.training.schedule:Schedule")  # fmt: skip
VALIDATORS = Registry("validation", {
    "annotation": "xrep.validation.annotation:AnnotationValidator",
    "loss": "xrep.validation.loss:LossValidator",
    "nli": "xrep.validation.nli:NliValidator",
    "retrieval": "xrep.validation.retrieval:RetrievalValidator",
    "several": "xrep.validation.several:SeveralValidator",
    "sts": "xrep.validation.sts:StsValidator",
    "translation": "xrep.validation.translation:TranslationValidator",
}, "xrep.training.validator:Validator")  # fmt: skip
EVALUATIONS = Registry("evaluation", {
    "alignment": "xrep.evaluation.alignment:Alignment",
    "all": "xrep.evaluation.all:All",
    "amazon": "xrep.evaluation.annotated:Amazon",
    "bucc": "xrep.evaluation.bucc:Bucc",
    "language-bias": "xrep.evaluation.language_bias:LanguageBias",
    "ner": "xrep.evaluation.annotated:NamedEntities",
    "neighbours": "xrep.evaluation.nearest:Neighbours",
    "nli": "xrep.evaluation.nli:NliAccuracy",
    "pawsx": "xrep.evaluation.annotated:PawsX",
    "pos": "xrep.evaluation.annotated:PartsOfSpeech",
    "qa": "xrep.evaluation.annotated:Questions",
    "scatter": "xrep.evaluation.scatter:Scatter",
    "senteval": "xrep.evaluation.senteval.evaluate:SentEval",
    "sts": "xrep.evaluation.sts:Sts",
    "tatoeba": "xrep.evaluation.tatoeba:Tatoeba",
    "translation": "xrep.evaluation.translation:TranslationQuality",
    "xnli": "xrep.evaluation.annotated:Xnli",
    "xtreme": "xrep.evaluation.xtreme:Xtreme",
}, "xrep.evaluation.evaluation:Evaluation")  # fmt: skip
REGISTRIES = {
    registry.kind: registry
    for registry in (TASKS, MODELS, ENCODERS, CRITERIA, OPTIMIZERS, LR_SCHEDULERS, VALIDATORS, EVALUATIONS)
}
