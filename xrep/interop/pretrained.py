"""Reading of pretrained encoders from directories of Hugging Face or sentence-transformers.

BERT and RoBERTa (with XLM-R and CamemBERT) are the same post-norm transformer; RoBERTa's positions begin at pad id + 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from xrep.errors import UserError
from xrep.interop.sentence_modules import DenseSpec, read_modules
from xrep.nn.encoder import EncoderShape, TransformerEncoder
from xrep.nn.heads import MaskedLanguageHead
from xrep.nn.layers import Activation
from xrep.nn.pooling import Pooling
from xrep.nn.weights import Weights, read_json, some

CONFIG = "config.json"
Family = Literal["bert", "roberta", "xlm-roberta"]
FAMILIES: dict[str, Family] = {
    "bert": "bert",
    "roberta": "roberta",
    "camembert": "roberta",
    "xlm-roberta": "xlm-roberta",
}
# A configuration without model_type names a class instead.
ARCHITECTURES = {"Bert": "bert", "Roberta": "roberta", "Camembert": "camembert", "XLMRoberta": "xlm-roberta"}
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
# Options that change the computation, with the values for which they do not.
INERT: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None, {}),
    "auto_map": (None, {}),
}
PREFIXES = ("", "bert.", "roberta.", "model.")
WORDS, TYPES = "embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight"
BESIDE_ENCODER = re.compile(
    r"embeddings\.(position_ids|token_type_ids)|pooler\..*|cls\.(predictions|seq_relationship)\..*|lm_head\..*"
)
TOGETHER = f"check that {CONFIG} and the weights belong together"


@dataclass(frozen=True, kw_only=True, eq=False)
class Pretrained:
    """The configuration that was read from the directory of a pretrained encoder.

    Attributes:
        path: folder of the transformer (``config.json``, weights, tokenizer): the directory or ``0_Transformer`` in it.
        pooling, normalize: settings of a sentence-transformers directory; None if the directory has none.
        projection: dense layer between pooling and normalisation.
    """

    path: Path
    family: Family
    shape: EncoderShape
    pooling: Pooling | None = None
    normalize: bool | None = None
    projection: DenseSpec | None = None


def find_pretrained(name_or_path: str | Path) -> Path:
    """Return a directory, or the folder of a model in the local Hugging Face cache; nothing is downloaded.

    Raises:
        UserError: neither exists.
    """
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise UserError("a file, not the directory of a pretrained encoder", path=path, cure=f"try {path.parent}")
    name = str(name_or_path)
    get = "name a directory (xrep-data list shows encoders that it can fetch)"
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name):
        raise UserError("no such directory", path=path, cure=get)
    try:
        from huggingface_hub import constants, snapshot_download
    except ImportError:
        problem = "no such directory, and without huggingface_hub no Hugging Face cache to look in"
        raise UserError(problem, path=path, cure=f"{get}, or pip install huggingface_hub") from None
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (OSError, ValueError) as error:
        # Newer versions refuse a folder with only the files that transformers fetched, but those are enough here.
        if found := getattr(error, "snapshot_path", None):
            return Path(found)
        problem = f"no such directory, and no such model in the Hugging Face cache {constants.HF_HUB_CACHE}"
        raise UserError(problem, path=path, cure=f"{get}, or run: hf download {name}") from None


def read_pretrained(path: str | Path) -> Pretrained:
    """Read the configuration of a Hugging Face or sentence-transformers directory, without the encoder's weights.

    Raises:
        UserError: it is not such a directory, a file is damaged, or xrep cannot express the architecture or a module.
    """
    root = Path(path)
    modules = read_modules(root)
    if modules is None:
        family, shape = _read_config(root / CONFIG)
        return Pretrained(path=root, family=family, shape=shape)
    family, shape = _read_config(modules.transformer / CONFIG)
    projection = modules.projection
    width = shape.hidden_size if projection is None else projection.weight.size(1)
    if width != shape.hidden_size:
        problem = f"the module Dense takes vectors of {width} numbers, the transformer gives {shape.hidden_size}"
        raise UserError(problem, path=root, cure="fetch the directory again")
    return Pretrained(
        path=modules.transformer,
        family=family,
        shape=shape,
        pooling=modules.pooling,
        normalize=modules.normalize,
        projection=projection,
    )


def _read_config(path: Path) -> tuple[Family, EncoderShape]:
    if not path.is_file():
        cure = "name a directory of Hugging Face or sentence-transformers"
        raise UserError(f"no {CONFIG}: not the directory of a pretrained encoder", path=path.parent, cure=cure)
    config = read_json(path)
    model_type = str(config.get("model_type") or _type_of_class(config))
    if model_type not in FAMILIES:
        problem = f"a model of type {model_type!r}; xrep reads {', '.join(FAMILIES)}"
        raise UserError(problem, path=path, cure="use one of these")
    for key, values in INERT.items():
        if config.get(key) not in values:
            problem = f"{key} is {config[key]!r}, which xrep's encoder cannot do"
            raise UserError(problem, path=path, cure="use a plain encoder of this family")
    activation = ACTIVATIONS.get(str(config.get("hidden_act", "gelu")))
    if activation is None:
        problem = f"hidden_act is {config['hidden_act']!r}; xrep has {', '.join(ACTIVATIONS)}"
        raise UserError(problem, path=path, cure="use another encoder")
    family = FAMILIES[model_type]
    pad_id = _integer(config, "pad_token_id", path, 0, default=0 if family == "bert" else 1)
    offset = 0 if family == "bert" else pad_id + 1
    types = _integer(config, "type_vocab_size", path, 1, default=2)
    epsilon = config.get("layer_norm_eps", 1e-12)
    heads, hidden_size = (_integer(config, key, path, 1) for key in ("num_attention_heads", "hidden_size"))
    shape = EncoderShape(
        vocabulary_size=_integer(config, "vocab_size", path, pad_id + 1),
        pad_id=pad_id,
        hidden_size=hidden_size,
        layers=_integer(config, "num_hidden_layers", path, 0),
        heads=heads,
        feedforward_size=_integer(config, "intermediate_size", path, 1),
        max_positions=_integer(config, "max_position_embeddings", path, offset + 1) - offset,
        position_offset=offset,
        type_vocabulary_size=0 if _wrote_no_types(config) else types,
        norm_epsilon=epsilon,
        activation=activation,
    )
    if hidden_size % heads or isinstance(epsilon, bool) or not isinstance(epsilon, float | int) or not epsilon > 0:
        problem = f"hidden_size {hidden_size}, num_attention_heads {heads}, layer_norm_eps {epsilon!r}: no such encoder"
        raise UserError(problem, path=path, cure="fetch the file again")
    return family, shape


def _type_of_class(config: dict[str, Any]) -> str | None:
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else ""
    found = re.match(r"(\w+?)(Model|For[A-Z])", str(name))
    return ARCHITECTURES.get(found[1]) if found else None


def _wrote_no_types(config: dict[str, Any]) -> bool:
    """Return whether xrep wrote the config, for an encoder without a type table (the file has one with one row)."""
    ours = config.get("xrep")
    return isinstance(ours, dict) and ours.get("type_vocabulary_size") == 0 and config.get("type_vocab_size") == 1


def _integer(config: dict[str, Any], key: str, path: Path, minimum: int, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        problem = f"{key} is {value!r}, not a whole number of at least {minimum}"
        raise UserError(problem, path=path, cure="fetch the file again")
    return value


def tensor_names(shape: EncoderShape) -> dict[str, tuple[str, ...]]:
    """Map each tensor name of a ``TransformerEncoder`` to the Hugging Face tensors that it joins along the rows."""
    names: dict[str, tuple[str, ...]] = {
        "token_embedding.weight": (WORDS,),
        "position_embedding.weight": ("embeddings.position_embeddings.weight",),
    }
    if shape.type_vocabulary_size:
        names["type_embedding.weight"] = (TYPES,)
    parts = {
        "attention.qkv": tuple(f"attention.self.{part}" for part in ("query", "key", "value")),
        "attention.output": ("attention.output.dense",),
        "attention_norm": ("attention.output.LayerNorm",),
        "feedforward_in": ("intermediate.dense",),
        "feedforward_out": ("output.dense",),
        "feedforward_norm": ("output.LayerNorm",),
    }
    for kind in ("weight", "bias"):
        names[f"norm.{kind}"] = (f"embeddings.LayerNorm.{kind}",)
        for layer in range(shape.layers):
            for ours, theirs in parts.items():
                joined = tuple(f"encoder.layer.{layer}.{name}.{kind}" for name in theirs)
                names[f"layers.{layer}.{ours}.{kind}"] = joined
    return names


def encoder_state(pretrained: Pretrained, layers: int | None = None) -> tuple[dict[str, Tensor], list[str]]:
    """Return the state of a ``TransformerEncoder`` with the first ``layers`` layers (None: all), in float32.

    Returns:
        the state, and the names of the tensors in the directory that it does not use: buffers, poolers, heads of
        language models, higher layers.

    Raises:
        UserError: weights are missing, damaged or of another shape, tensors have no known use, or the encoder has fewer
            than ``layers`` layers.
    """
    whole = pretrained.shape
    if layers is not None and not 1 <= layers <= whole.layers:
        cure = f"ask for 1 to {whole.layers}"
        raise UserError(f"{layers} layers asked of an encoder of {whole.layers}", path=pretrained.path, cure=cure)
    shape = whole if layers is None else replace(whole, layers=layers)
    weights = Weights(pretrained.path)
    named, prefix = _named(weights)
    wanted = tensor_names(shape)
    used = {name for names in wanted.values() for name in names}
    above = {name for names in tensor_names(whole).values() for name in names}
    known = {name for name in named if name in used | above or BESIDE_ENCODER.fullmatch(name)}
    known |= named.keys() & ({TYPES} if not shape.type_vocabulary_size else set())
    strange = weights.keys() - {named[name] for name in known}
    _refuse(weights.path, [prefix + name for name in used - named.keys()], strange)
    with torch.device("meta"):
        expected = TransformerEncoder(shape, dropout=0.0, attention_dropout=0.0).state_dict()
    state = {}
    for ours, theirs in wanted.items():
        rows, *rest = expected[ours].shape
        parts = [_checked(weights, named[name], (rows // len(theirs), *rest)) for name in theirs]
        state[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
    if not shape.type_vocabulary_size and TYPES in named:
        types = _checked(weights, named[TYPES], (1, shape.hidden_size))
        if types.any():  # another program trained it: every token has type 0, so the row is added to the positions
            state["position_embedding.weight"] = state["position_embedding.weight"] + types
    return state, sorted(named[name] for name in named.keys() - used)


def _named(weights: Weights) -> tuple[dict[str, str], str]:
    """Map current Hugging Face names, without the prefix of the encoder, to names in the file; also return the prefix.

    Tensors that neither have the prefix nor belong to a head are left out.
    """
    prefixes = [name.removesuffix(WORDS) for name in weights if name.endswith(WORDS)]
    if len(prefixes) != 1 or prefixes[0] not in PREFIXES:
        problem = f"no encoder in it: no tensor {WORDS}, alone or after {', '.join(PREFIXES[1:])}"
        if prefixes:
            problem = f"which tensors are the encoder's? {', '.join(prefix + WORDS for prefix in sorted(prefixes))}"
        raise UserError(problem, path=weights.path, cure="use the weights of a single BERT or RoBERTa")
    named: dict[str, str] = {}
    for name in weights:
        if not name.startswith(prefixes[0]) and not BESIDE_ENCODER.fullmatch(name):
            continue
        plain = name.removeprefix(prefixes[0])
        # Early conversions have TensorFlow's names for the two tensors of a normalisation.
        plain = re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: {"gamma": "weight", "beta": "bias"}[old[0]], plain)
        if plain in named:
            raise UserError(f"one tensor under two names: {named[plain]} and {name}", path=weights.path, cure=TOGETHER)
        named[plain] = name
    return named, prefixes[0]


def _refuse(path: Path, missing: Iterable[str], strange: Iterable[str]) -> None:
    """Raise a UserError that lists missing and unknown tensors, if there are any."""
    kinds = {"missing": list(missing), "of no known use": list(strange)}
    problems = [f"{len(names)} tensors {kind}: {some(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise UserError("; ".join(problems).replace("1 tensors", "1 tensor"), path=path, cure=TOGETHER)


def _checked(weights: Weights, name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = weights[name]
    if tensor.shape != shape or tensor.dtype != torch.float32:
        kind = str(tensor.dtype).removeprefix("torch.")
        problem = f"{name} is {kind} {list(tensor.shape)}, not floating-point {list(shape)}"
        raise UserError(problem, path=weights.path, cure=TOGETHER)
    return tensor


def masked_language_head(pretrained: Pretrained) -> MaskedLanguageHead:
    """Return the masked language head of a directory (``cls.predictions`` in BERT, ``lm_head`` in RoBERTa and XLM-R).

    Raises:
        UserError: there is no head, its tensors are not as expected, or its output matrix is not the embedding matrix.
    """
    bert, shape = pretrained.family == "bert", pretrained.shape
    base, dense, norm = (
        ("cls.predictions.", "transform.dense", "transform.LayerNorm") if bert else ("lm_head.", "dense", "layer_norm")
    )
    weights = Weights(pretrained.path)
    named = {name.removeprefix(base): file for name, file in _named(weights)[0].items() if name.startswith(base)}
    if not named:
        cure = "give the directory of a masked language model, or train a new head"
        raise UserError(f"no masked language head: no tensor {base}*", path=weights.path, cure=cure)
    size, words = shape.hidden_size, shape.vocabulary_size
    bias = "bias" if "bias" in named else "decoder.bias"  # one tensor under two names; often only one is stored
    sources = {
        "dense.weight": (f"{dense}.weight", (size, size)),
        "dense.bias": (f"{dense}.bias", (size,)),
        "norm.weight": (f"{norm}.weight", (size,)),
        "norm.bias": (f"{norm}.bias", (size,)),
        "bias": (bias, (words,)),
    }
    needed = {name for name, _ in sources.values()}
    _refuse(
        weights.path,
        [base + name for name in needed - named.keys()],
        [named[name] for name in named.keys() - needed - {"decoder.weight", "decoder.bias"}],
    )
    state = {ours: _checked(weights, named[name], expected) for ours, (name, expected) in sources.items()}
    _check_tied(pretrained, weights, named, state["bias"])
    activation = shape.activation if bert else "gelu"  # RoBERTa's head uses GELU whatever the encoder uses
    head = MaskedLanguageHead(size, words, activation=activation, norm_epsilon=shape.norm_epsilon)
    head.load_state_dict(state)
    return head


def _check_tied(pretrained: Pretrained, weights: Weights, named: dict[str, str], bias: Tensor) -> None:
    """Refuse a head with its own output matrix, or with two different biases."""
    if "decoder.weight" in named:
        embedding = weights[_named(weights)[0][WORDS]]
        tied = torch.equal(weights[named["decoder.weight"]], embedding)
    else:
        tied = read_json(pretrained.path / CONFIG).get("tie_word_embeddings") is not False
    if not tied:
        problem = "the masked language head has an output matrix of its own, xrep's has the embedding matrix"
        raise UserError(problem, path=weights.path, cure="train a new head")
    if "decoder.bias" in named and not torch.equal(weights[named["decoder.bias"]], bias):
        raise UserError("the masked language head has two biases", path=weights.path, cure=TOGETHER)
