"""Encoders that the library ``transformers`` computes: any of its models that gives a vector for each token.

Nothing in a directory can run code: only classes of the installed library are used, never code that a directory or its
configuration names, and the weights are read by ``xrep.nn.weights``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from xrep.data.batch import TokenBatch
from xrep.errors import UserError
from xrep.nn.bert import ACTIVATIONS, FAMILIES, HF_CONFIG, INERT, check_inert
from xrep.nn.encoder import Encoder
from xrep.nn.shape import UNLIMITED, EncoderSizes
from xrep.nn.weights import Weights, read_json, some
from xrep.registry import one_line

# The names that its families have for the two rates.
DROPOUT = (
    *("hidden_dropout_prob", "hidden_dropout", "dropout", "dropout_rate", "embedding_dropout", "mlp_dropout"),
    *("embd_pdrop", "emb_pdrop", "embed_dropout", "resid_pdrop", "resid_dropout", "residual_dropout"),
)
ATTENTION_DROPOUT = ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop")
# Entries of a configuration that name code to fetch and run, or kernels, or that only describe the file.
DROPPED = ("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "torch_dtype", "dtype")


@dataclass(frozen=True, kw_only=True)
class TransformersShape(EncoderSizes):
    """The sizes of a model of transformers, with the configuration from which it can be built again."""

    type: str = "transformers"
    config: dict[str, Any] = field(default_factory=dict)
    """Content of ``config.json``."""

    def first_layers(self, layers: int | None, path: Path) -> EncoderSizes:
        shape = super().first_layers(layers, path)
        if layers is None:
            return shape
        name = _library_config(self.config, path).attribute_map.get("num_hidden_layers", "num_hidden_layers")
        of_layer = re.compile("layer|attention")  # such as layer_types, and Longformer's attention_window
        lists = {key: value for key, value in self.config.items() if isinstance(value, list) and of_layer.search(key)}
        of_layers = {key: value[:layers] for key, value in lists.items() if len(value) == self.layers}
        return replace(shape, config={**self.config, **of_layers, name: layers})

    def with_rows(self, rows: Sequence[int]) -> EncoderSizes:
        return replace(super().with_rows(rows), config=_with_rows(self.config, rows))


class TransformersEncoder(Encoder):
    """A model of transformers. Its own modules do everything except pooling.

    The input embeddings and the layers are named ``token_embedding`` and ``layers`` as in other encoders; everything
    else is below ``model``. Dropout rates replace those of the model's configuration.

    Args:
        model: The model with its weights; None builds one with random weights.

    Raises:
        UserError: ``transformers`` is not installed, or has no such model.
    """

    Shape = TransformersShape
    shape: TransformersShape

    def __init__(
        self, shape: TransformersShape, *, dropout: float, attention_dropout: float, model: Any = None
    ) -> None:
        super().__init__()
        self.shape = shape  # pyright: ignore[reportIncompatibleVariableOverride]
        if model is None:
            config = _library_config(shape.config)
            for names, rate in ((DROPOUT, dropout), (ATTENTION_DROPOUT, attention_dropout)):
                for name in names:
                    if hasattr(config, name):
                        setattr(config, name, rate)
            model = _model_class(config)(config)
        model.config.use_cache = False  # of decoders: keys and values for generation
        model.pooler = None  # of BERT and others: a layer for classification that token vectors do not use
        self.library_class = type(model).__name__
        self.model = model
        # Each module is registered once, under the name that it has in every encoder. The model itself finds it as an
        # ordinary attribute.
        self._places: dict[str, str] = {}
        """Names in the model of the modules that were moved."""
        self.token_embedding = self._moved("token_embedding", _embedding_name(model))
        stack = _stack_name(model, shape.layers)
        self.layers = cast(Any, nn.ModuleList()) if stack is None else self._moved("layers", stack)

    def _moved(self, ours: str, theirs: str) -> Any:
        """Take a module of the model, and all others with the same weight, out of the model's registered modules."""
        module = self.model.get_submodule(theirs)
        weight = getattr(module, "weight", module)
        for name, other in list(self.model.named_modules(remove_duplicate=False)):
            if other is module or getattr(other, "weight", None) is weight:
                parent, _, attribute = name.rpartition(".")
                owner = self.model.get_submodule(parent)
                del owner._modules[attribute]
                object.__setattr__(owner, attribute, module)
        self._places[ours] = theirs
        return module

    def forward(self, batch: TokenBatch, hidden_layer: int | None = None) -> Tensor:
        """As ``Encoder.forward``, but the layers above ``hidden_layer`` are computed, too. Raises UserError if the
        model has no list of layers from which ``hidden_layer`` could be taken."""
        last = self.shape.layers
        if not 0 <= (last if hidden_layer is None else hidden_layer) <= last:
            raise ValueError(f"hidden_layer must lie in [0, {last}], not {hidden_layer}")
        if not len(batch):  # models cannot compute an empty batch, but all parameters shall have a gradient
            ones = torch.ones(1, batch.tokens.size(1), dtype=torch.long, device=batch.tokens.device)
            return self(TokenBatch(ones, ones.sum(1), np.array([batch.tokens.size(1)])), hidden_layer)[:0]
        several = batch.types is not None and (getattr(self.model.config, "type_vocab_size", 0) or 0) > 1
        types = {"token_type_ids": batch.types} if several else {}
        with self._inputs_of(None if hidden_layer == last else hidden_layer) as inputs:
            states = self.model(input_ids=batch.tokens, attention_mask=batch.mask.long(), **types).last_hidden_state
        return (inputs[0] if inputs else states).masked_fill(~batch.mask.unsqueeze(-1), 0.0)

    @contextmanager
    def _inputs_of(self, number: int | None) -> Iterator[list[Tensor]]:
        """Context manager that gives a list, which receives the input of a layer: the output of the ones below it.
        (``output_hidden_states`` finds no layers outside of the model's registered modules.)"""
        inputs: list[Tensor] = []
        if number is None:
            yield inputs
            return
        if not len(self.layers):
            raise UserError(f"a {self.library_class} has no list of layers", cure="leave out `pooled_layer`")

        def note(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            inputs.append(given[0] if given else named["hidden_states"])

        hook = self.layers[number].register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield inputs
        finally:
            hook.remove()

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply a conversion, but keep the type of buffers: half precision is too coarse for rotary frequencies."""
        held = [(part, name, buffer) for part in self.modules() for name, buffer in part._buffers.items()]
        super()._apply(fn, recurse)
        for part, name, buffer in held:
            moved = part._buffers[name]
            if buffer is not None and moved is not None and moved.dtype != buffer.dtype:
                part._buffers[name] = buffer.to(moved.device)
        return self

    def set_activation_checkpointing(self, on: bool) -> None:
        parts: list[Any] = [part for part in self.modules() if hasattr(part, "gradient_checkpointing")]
        if on and not parts:
            raise UserError(f"a {self.library_class} has no activation checkpointing", cure="turn it off")
        for part in parts:
            part.gradient_checkpointing = on
            part._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)

    @classmethod
    def read_shape(cls, directory: Path) -> TransformersShape:
        path = directory / HF_CONFIG
        content = read_json(path)
        family = content.get("model_type") in FAMILIES
        check_inert(content, path, INERT if family else list(INERT)[2:])
        content = _without_code(content)
        config = _library_config(content, path)
        with _refusing("transformers cannot build this model", path, "use an encoder of text"):
            with torch.device("meta"):
                model = _model_class(config, path)(config)
            embedding = model.get_submodule(_embedding_name(model))
            activation = _first(config, "hidden_act", "hidden_activation")
            return TransformersShape(
                vocabulary_size=embedding.weight.size(0),
                pad_id=config.pad_token_id,
                hidden_size=config.hidden_size,
                layers=config.num_hidden_layers,
                heads=config.num_attention_heads,
                feedforward_size=_first(config, "intermediate_size", "d_ff") or 4 * config.hidden_size,
                max_positions=_positions(config, model),
                norm_epsilon=_first(config, "layer_norm_eps", "norm_eps", "layer_norm_epsilon") or 1e-12,
                activation=ACTIVATIONS.get(str(activation), "gelu"),
                config=content,
            )

    @classmethod
    def read_state(cls, directory: Path, shape: EncoderSizes) -> tuple[dict[str, Tensor], list[str]]:
        assert isinstance(shape, TransformersShape)
        weights, config = Weights(directory), _library_config(shape.config, directory / HF_CONFIG)
        # ``from_pretrained`` maps names of other versions, and those of a model below a head, to its own.
        cure = f"check that {HF_CONFIG} and the weights belong together"
        with _refusing("transformers cannot load these weights", weights.path, cure), _quietly():
            model, report = _model_class(config, directory / HF_CONFIG).from_pretrained(
                None, config=config, state_dict=dict(weights), dtype=torch.float32, output_loading_info=True
            )
        # Transformers gives random values to tensors that are missing.
        if missing := [name for name in report["missing_keys"] if not name.startswith("pooler.")]:
            raise UserError(f"{len(missing)} tensors missing: {some(missing)}", path=weights.path, cure=cure)
        state = cls(shape, dropout=0.0, attention_dropout=0.0, model=model).state_dict()
        return state, sorted(report["unexpected_keys"])

    def to_huggingface(self, layers: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        if layers != self.shape.layers:
            problem = f"its vectors are of layer {layers} of {self.shape.layers}, which transformers cannot express"
            cure = "leave out `layer`, or train it without `pooled_layer` or with `pretrained_layers`"
            raise UserError(problem, cure=cure)
        split = {name: name.partition(".")[::2] for name in self.state_dict()}
        names = {name: rest if own == "model" else f"{self._places[own]}.{rest}" for name, (own, rest) in split.items()}
        tensors = {names[name]: tensor.float().clone() for name, tensor in self.state_dict().items()}
        return {**self.shape.config, "architectures": [self.library_class], "torch_dtype": "float32"}, tensors


def _library() -> Any:
    """Return the module ``transformers``."""
    try:
        import transformers
    except ImportError:
        problem = "encoders of type transformers need the package transformers"
        raise UserError(problem, cure="pip install 'xrep[hf]'") from None
    return transformers


@contextmanager
def _refusing(problem: str, path: Path | None, cure: str) -> Iterator[None]:
    """Report what transformers raises, which may be any exception, as a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{problem}: {type(error).__name__}: {one_line(error)}", path=path, cure=cure) from None


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers from showing a progress bar and a table of unused weights, which a run notes in a line."""
    logging = _library().utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _without_code(content: Any) -> Any:
    """Return a configuration without the entries in ``DROPPED``, at every depth."""
    if isinstance(content, dict):
        return {key: _without_code(value) for key, value in content.items() if key not in DROPPED}
    return [_without_code(value) for value in content] if isinstance(content, list) else content


def _with_rows(config: dict[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    """Return a configuration with the ids of the tokens that have these rows, without ids that have no row."""

    def changed(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _with_rows(value, rows)
        if key.endswith("token_id"):
            found = [rows.index(i) for i in (value if isinstance(value, list) else [value]) if i in rows]
            return found if isinstance(value, list) else next(iter(found), None)
        return len(rows) if key == "vocab_size" else value

    return {key: changed(key, value) for key, value in config.items()}


def _library_config(content: dict[str, Any], path: Path | None = None) -> Any:
    """Return the configuration object of transformers."""
    mapping = _library().CONFIG_MAPPING
    model_type = str(content.get("model_type"))
    if model_type not in mapping:
        problem = f"a model of type {model_type!r}, which the installed transformers does not have"
        cure = "update transformers; xrep never runs code that comes with a model"
        raise UserError(problem, path=path, cure=cure)
    with _refusing("transformers does not accept this configuration", path, "fetch the file again"):
        return mapping[model_type].from_dict(content)


def _model_class(config: Any, path: Path | None = None) -> Any:
    """Return the class of the encoder alone: ``T5EncoderModel`` rather than ``T5Model``, for example."""
    auto = _library().models.auto.modeling_auto
    for mapping in (auto.MODEL_FOR_TEXT_ENCODING_MAPPING, auto.MODEL_MAPPING):
        classes = mapping.get(type(config), None)
        model = classes[0] if isinstance(classes, tuple) else classes
        if model and model.main_input_name == "input_ids":
            if not config.is_encoder_decoder or "Encoder" in model.__name__:
                return model
    problem = f"transformers has no encoder that gives token vectors for models of type {config.model_type!r}"
    raise UserError(problem, path=path, cure="use an encoder of text")


def _embedding_name(model: nn.Module) -> str:
    embedding = model.get_input_embeddings()  # type: ignore[operator]
    return next(name for name, module in model.named_modules() if module is embedding)


def _stack_name(model: nn.Module, count: int) -> str | None:
    """Return the name of the list that holds the model's layers; None if it has no such list, or more than one."""
    lists = [name for name, part in model.named_modules() if isinstance(part, nn.ModuleList) and len(part) == count]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    return outer[0] if len(outer) == 1 and count else None


def _positions(config: Any, model: nn.Module) -> int:
    """Return the length of the longest sequence; the positions of RoBERTa's relatives begin at pad id + 1."""
    positions = _first(config, "max_position_embeddings", "n_positions") or UNLIMITED
    tables = [part for name, part in model.named_modules() if name.endswith("position_embeddings")]
    pads = [getattr(part, "padding_idx", None) for part in tables]
    return positions - max((pad + 1 for pad in pads if pad is not None), default=0)


def _first(config: Any, *names: str) -> Any:
    """Return the first of the named options that the configuration has; None if it has none of them."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)
