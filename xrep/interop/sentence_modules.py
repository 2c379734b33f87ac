"""The chain of modules of a sentence-transformers directory: transformer, pooling, dense layers, normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from xrep.errors import UserError
from xrep.nn.pooling import Pooling
from xrep.nn.weights import Weights, inside, read_json

MODULES = "modules.json"
OPTIONS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
ROUTER = "router_config.json"
CURE = "use its transformer alone: name that folder without modules.json"
ORDER = ("StaticEmbedding", "Transformer", "Pooling", "Dense", "Second Dense", "Normalize")
POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
DenseActivation = Literal["none", "tanh"]
DENSE_ACTIVATIONS: dict[str, DenseActivation] = {"Identity": "none", "Tanh": "tanh"}


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseSpec:
    """A linear layer on sentence vectors, activation(weight @ x + bias).

    Attributes:
        tensors: Reads ``weight`` [D, H] and, if there is a bias, ``bias`` [D].
    """

    output_size: int
    bias: bool
    activation: DenseActivation
    tensors: Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Texts that are put in front of sentences, by name, and the name of the one that is used unless another is."""

    texts: dict[str, str] = field(default_factory=dict)
    default: str | None = None

    @property
    def text(self) -> str:
        """The text that is used by default; empty if there is none."""
        return self.texts[self.default] if self.default else ""


def read_prompts(root: Path) -> Prompts:
    """Read the prompts of a directory of sentence-transformers; there are none if it has no such file. Raises UserError
    if the file is damaged, or would have vectors cut."""
    path = root / PROMPTS
    options = read_json(path) if path.is_file() else {}
    if width := options.get("truncate_dim"):
        problem = f"sentence-transformers would cut its vectors to {width} numbers, and xrep would not"
        raise UserError(problem, path=path, cure="set truncate_dim to null there, and cut the vectors yourself")
    texts, default = options.get("prompts") or {}, options.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise UserError("prompts are not texts with names", path=path, cure="fetch the file again")
    if default is not None and not (isinstance(default, str) and default in texts):
        raise UserError(
            f"there is no prompt {str(default)[:80]!r}, the default", path=path, cure="fetch the file again"
        )
    return Prompts(texts=texts, default=default)


def read_router(root: Path) -> dict[str, Path] | None:
    """Return the folder of each language's tower if the only module is a Router; None if it is not. Raises UserError if
    a tower is no directory of sentence-transformers in ``root``, or a file is damaged."""
    if not (root / MODULES).is_file() or [_kind(module) for module in read_json(root / MODULES, list)] != ["Router"]:
        return None
    path = root / ROUTER
    structure = read_json(path).get("structure")
    towers: dict[str, Path] = {}
    for language, chain in structure.items() if isinstance(structure, dict) else ():
        first = chain[0] if isinstance(chain, list) and chain and isinstance(chain[0], str) else ""
        folder = inside(root, first, path)
        whole = [str(Path(first, entry["path"])) for entry in _entries(folder / MODULES)] if first else []
        if not whole or chain != whole:
            problem = f"the route {language!r} is not one of the directories of sentence-transformers in this folder"
            raise UserError(problem, path=path, cure="use the folders of its transformers, one for each language")
        towers[language] = folder
    if len(set(towers.values())) not in (1, 2):
        problem = f"a Router of {len(set(towers.values()))} towers, xrep has one or two"
        raise UserError(problem, path=path, cure="use the folder of one tower")
    return towers


def _kind(module: Any) -> str:
    return str(_entry(module, "type")).rpartition(".")[2]


def _entries(path: Path) -> list[dict[str, str]]:
    """Return the modules that a file lists, each with a type and a path."""
    modules = read_json(path, list)
    for module in modules:
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise UserError("not a list of modules with type and path", path=path, cure="fetch the file again")
    return modules


def read_chain(root: Path) -> dict[str, Path]:
    """Return the folder of each kind of module of a directory; it is empty if the directory has no ``modules.json``.
    Raises UserError if xrep cannot express a module or their order, or a file is damaged."""
    path = root / MODULES
    if not path.exists():
        return {}
    folders: dict[str, Path] = {}
    chain: list[str] = []
    for module in _entries(path):
        package, kind = module["type"].partition(".")[0], _kind(module)
        if package == "sentence_transformers" and kind == "Router":
            cure = f"name one of its towers, such as {path.parent / 'source'}"
            raise UserError("has a tower for each side", path=path.parent, cure=cure)
        if package != "sentence_transformers" or kind not in ORDER:
            problem = f"xrep has no counterpart of the module {module['type']} ({module['path'] or '.'})"
            raise UserError(problem, path=path, cure=CURE)
        kind = "Second Dense" if kind == "Dense" and kind in folders else kind
        chain.append(kind)
        folders[kind] = inside(path.parent, module["path"], path)
    is_static = chain[:1] == ["StaticEmbedding"]
    begins = chain[:2] == ["Transformer", "Pooling"] or is_static
    if chain != [kind for kind in ORDER if kind in chain] or not begins:
        read = "Transformer -> Pooling or StaticEmbedding [-> Dense [-> Dense]] [-> Normalize]"
        problem = f"modules {' -> '.join(chain).replace('Second ', '') or '(none)'}, but xrep reads {read}"
        raise UserError(problem, path=path, cure=CURE)
    if not is_static:
        _check_transformer(folders["Transformer"])
    return folders


def _check_transformer(directory: Path) -> None:
    """Refuse a transformer whose output is not token vectors."""
    path = directory / OPTIONS
    options = read_json(path) if path.is_file() else {}
    _check_options(
        "Transformer",
        options
        | {"method_output_name": _entry(options, "modality_config", "text", "method_output_name")}
        | {"processing_kwargs": options.get("processing_kwargs") or None},
        path,
        processing_kwargs=None,
        transformer_task="feature-extraction",
        module_output_name="token_embeddings",
        method_output_name="last_hidden_state",
    )


def _check_options(kind: str, options: dict[str, Any], path: Path, **expected: Any) -> None:
    """Refuse a module with other options than xrep can express."""
    for key, value in expected.items():
        if options.get(key) not in (None, value):
            problem = f"the module {kind} has {key} {options[key]!r}, xrep reads {value!r} alone"
            raise UserError(problem, path=path, cure=CURE)


def _entry(content: Any, *keys: str) -> Any:
    """Return an entry of nested objects; None if there is none."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def read_pooling(directory: Path, prompts: Prompts) -> Pooling:
    """Read the module Pooling; a UserError says what xrep cannot express."""
    path = directory / "config.json"
    config = read_json(path)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    modes = ["last"] if modes == ["lasttoken"] else modes
    if any(prompts.texts.values()) and modes != ["last"]:  # the last token is not one of the prompt
        _check_options("Pooling", config, path, include_prompt=True)
    for kind in get_args(Pooling):
        if modes == [kind]:
            return kind
    named = " + ".join(map(str, modes)) if isinstance(modes, list) else repr(modes)
    problem = f"the module Pooling has the mode {named}, xrep has {', '.join(get_args(Pooling))}"
    raise UserError(problem, path=path, cure=CURE)


def read_dense(directory: Path, second: Path | None = None) -> DenseSpec:
    """Read the module Dense, without its tensors; a UserError says what xrep cannot express. A second one that follows
    is multiplied into it, as between linear layers nothing else is (EmbeddingGemma: 768 to 3072 to 768)."""
    if second is not None:
        first, last = read_dense(directory), read_dense(second)
        if first.activation != "none":
            problem = f"two modules Dense, and the activation {first.activation} between them"
            raise UserError(problem, path=directory / "config.json", cure=CURE)
        return replace(last, bias=first.bias or last.bias, tensors=partial(_product, first, last))
    path, embedding = directory / "config.json", "sentence_embedding"
    config = read_json(path, needed=["out_features"])
    _check_options("Dense", config, path, use_residual=False, module_input_name=embedding, module_output_name=embedding)
    function = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = DENSE_ACTIVATIONS.get(function.rpartition(".")[2]) if function.startswith("torch.nn.") else None
    if activation is None:
        problem = f"the module Dense has the activation {function}, xrep has {' and '.join(DENSE_ACTIVATIONS)}"
        raise UserError(problem, path=path, cure=CURE)
    return DenseSpec(
        output_size=config["out_features"],
        bias=config.get("bias", True),
        activation=activation,
        tensors=partial(_tensors_of_dense, directory),
    )


def _product(first: DenseSpec, last: DenseSpec) -> dict[str, Tensor]:
    """Return W₂ W₁ and W₂ b₁ + b₂ of two linear layers, which are multiplied in float64."""
    of_first, of_last = ({name: tensor.double() for name, tensor in each.tensors().items()} for each in (first, last))
    product = {"weight": of_last["weight"] @ of_first["weight"]}
    if first.bias or last.bias:
        bias = of_last["weight"] @ of_first["bias"] if first.bias else torch.zeros(last.output_size).double()
        product["bias"] = bias + of_last["bias"] if last.bias else bias
    return {name: tensor.float() for name, tensor in product.items()}


def _tensors_of_dense(directory: Path) -> dict[str, Tensor]:
    return {name.removeprefix("linear."): tensor for name, tensor in Weights(directory).items()}
