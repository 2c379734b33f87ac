"""Translation model: an encoder, which may be pretrained, and a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.data.batching import TextSpec, TokenBatch
from xrep.errors import UserError
from xrep.kernels.linear import linear
from xrep.models.model import TranslationModel
from xrep.models.start import check_vocabulary, encoder_shape, find_start, shape_from
from xrep.nn.decoder import DecoderShape, SourceMemory, StepCache, TransformerDecoder
from xrep.nn.encoder import Encoder, initialise
from xrep.nn.layers import Norm, Packing, layout_of
from xrep.nn.shape import EncoderSizes
from xrep.text.sides import SHARED


@dataclass
class Predictions:
    """The inputs of the loss of N target tokens: the logits are ``vectors @ matrix.T``, plus a bias if there is one.

    Attributes:
        vectors: Outputs of the decoder, [N, D].
        labels: int64 [N], the correct tokens.
        matrix: Output embeddings, [V, D].
        bias: [B, V], one row for each sentence.
        sentences: int64 [N], the sentence that each token belongs to.
    """

    vectors: Tensor
    labels: Tensor
    matrix: Tensor
    bias: Tensor | None = None
    sentences: Tensor | None = None


class Translation(TranslationModel):
    """Transformer encoder and decoder (Vaswani et al. 2017); the encoder may start from a pretrained one.

    The first input of the decoder is a vector of the target language instead of bos, so that one model can translate
    into several languages, whatever its vocabulary is.

    With ``semantic_bias`` (HiCTL, section 3.2 and figure 3) the logits of each step are z + s cos(r, E). Here r is the
    encoder's [CLS] vector of the source sentence, E is the encoder's embedding table (HiCTL's word-level contrast,
    equation 7, brings r and E together), and s is a learned scale, initialised to 1.

    Args:
        architecture: The result of ``architecture`` of a saved model, to build it again without its pretrained
            directory.

    Attributes:
        notes: Information about the pretrained weights for the user.
        max_target_length: Maximum number of tokens of a translation, including eos.

    Raises:
        UserError: Sentences may be longer than the position tables; a pretrained directory cannot be read or does not
            fit the text; or the options need a shared vocabulary and there is none.
    """

    idle_parameters = False

    @dataclass(kw_only=True)
    class Config:
        encoder: str | None = None
        """Pretrained encoder to start from: RUN/best, or RUN/best/source of a run with two towers; a directory of
        Hugging Face or sentence-transformers, or a name in the local Hugging Face cache. The model uses its sizes and
        its tokenizer."""
        encoder_type: str = "auto"
        """Implementation of the encoder: transformer (xrep's own: BERT, RoBERTa, XLM-R), transformers (the library, pip
        install 'xrep[hf]', for any other encoder), or auto, which chooses xrep's own if it can."""
        pretrained_layers: int | None = None
        """Number of first layers of the pretrained encoder to use; none: all."""
        share_vocabulary: bool = True
        """Whether the decoder uses the vocabulary of the pretrained encoder. If not, only the source side of the text
        uses it, and the target side has its own vocabulary."""
        layers: int = 6
        """Number of layers of the encoder. This and the sizes below apply only to an encoder that is not pretrained."""
        hidden_size: int = 512
        """Width of the token vectors (Transformer base: 512, big: 1024)."""
        heads: int = 8
        """Number of attention heads (base: 8, big: 16)."""
        feedforward_size: int = 2048
        """Width of the feed-forward networks (base: 2048, big: 4096)."""
        decoder_layers: int = 4
        """Number of layers of the decoder (HiCTL: 4 in section 4.2, 6 in table 4)."""
        decoder_hidden_size: int | None = None
        """Width of the decoder; none: the width of the encoder."""
        decoder_heads: int | None = None
        """Number of attention heads of the decoder; none: as many as the encoder has."""
        decoder_feedforward_size: int | None = None
        """Width of the decoder's feed-forward networks; none: the same as in the encoder."""
        tie_embeddings: Literal["all", "decoder", "none"] = "decoder"
        """Which embedding tables share their weights. decoder: the decoder's input and output tables. all: these and
        the encoder's table, which needs a shared vocabulary and equal widths. none: no tables."""
        semantic_bias: bool = False
        """Add to the logits of each step the similarity of each word to the source sentence, which is the cosine of the
        encoder's [CLS] vector and the word's embedding, times a learned scale (HiCTL, section 3.2). Needs a shared
        vocabulary."""
        norm: Norm = "post"
        """Position of layer normalisation: after each sublayer (post) or before it (pre). It applies to the decoder,
        and to an encoder that is not pretrained."""
        dropout: float = 0.1
        """Dropout rate of embeddings and sublayer outputs."""
        attention_dropout: float = 0.1
        """Dropout rate of attention weights."""
        max_positions: int = 512
        """Maximum length of a sentence in subwords, including special tokens. It applies to the decoder, and to an
        encoder that is not pretrained."""

        def problems(self) -> list[str]:
            sizes = ("layers", "hidden_size", "heads", "feedforward_size", "max_positions", "pretrained_layers")
            sizes = (*sizes, *(name for name in vars(self) if name.startswith("decoder_")))
            given = {name: value for name in sizes if (value := getattr(self, name)) is not None}
            problems = [f"{name} must be at least 1, not {value}" for name, value in given.items() if value < 1]
            if not problems and not self.encoder and self.hidden_size % self.heads:
                problems.append(f"hidden_size {self.hidden_size} is not divisible by heads {self.heads}")
            rates = {name: getattr(self, name) for name in ("dropout", "attention_dropout")}
            return problems + [f"{name} must lie in [0, 1), not {x}" for name, x in rates.items() if not 0 <= x < 1]

        def pretrained(self) -> dict[str, str]:
            """Return the directory or name of the pretrained encoder by the side it reads; empty if there is none."""
            return {SHARED if self.share_vocabulary else "source": self.encoder} if self.encoder else {}

        def tokenizers(self) -> dict[str, str]:
            """Return the folder of the pretrained encoder's tokenizer by side; empty if there is none.

            Raises:
                UserError: The pretrained encoder does not exist.
            """
            starts = {side: find_start(path, self.encoder_type) for side, path in self.pretrained().items()}
            return {side: str(start.tokenizer) for side, start in starts.items()}

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self.text, self.notes = config, text, list[str]()
        self.source_vocabulary, self.target_vocabulary = text.vocabulary("source"), text.vocabulary("target")
        start = None
        if config.encoder and architecture is None:
            start = find_start(config.encoder, config.encoder_type)
        if architecture is None:
            shape = encoder_shape(config, self.source_vocabulary, start)
            architecture = {"encoder": shape.as_dict(), "decoder": _decoder_shape(config, shape).as_dict()}
        self._architecture = architecture
        shape, decoder_shape = shape_from(architecture["encoder"]), DecoderShape(**architecture["decoder"])
        _check(config, text, shape, decoder_shape)
        rates = {"dropout": config.dropout, "attention_dropout": config.attention_dropout}
        self.encoder = Encoder.build(shape, **rates)
        self.decoder = TransformerDecoder(decoder_shape, **rates)
        width, words = decoder_shape.hidden_size, self.target_vocabulary
        self.target_embedding: nn.Embedding | None = None
        self.output_embedding: nn.Embedding | None = None
        if config.tie_embeddings != "all":
            self.target_embedding = nn.Embedding(words.size, width, padding_idx=words.pad_id)
        if config.tie_embeddings == "none":
            self.output_embedding = nn.Embedding(words.size, width)
        self.language_embedding = nn.Embedding(len(text.target_languages), width)
        for own in (self.target_embedding, self.output_embedding, self.language_embedding):
            if own is not None:
                initialise(own, 0.02)
        self.semantic_scale = nn.Parameter(torch.ones(())) if config.semantic_bias else None
        if start is not None:
            state, unused = start.state(config.pretrained_layers)
            self.encoder.load_state_dict(state)
            left = f"; not used: {len(unused)} of its tensors" if unused else ""
            self.notes.append(f"encoder: {len(state)} tensors of {start.path}, encoder type {shape.type}{left}")

    def architecture(self) -> dict[str, Any]:
        """Return the sizes of encoder and decoder as plain data, which is saved beside the weights."""
        return self._architecture

    def carried_over(self, tensors: dict[str, Tensor], text: TextSpec) -> dict[str, Tensor]:
        """Return a model's tensors so that this one can load them; language vectors are matched by language name."""
        name, rows = "language_embedding.weight", self.language_embedding.weight.detach().clone()
        theirs = tensors.get(name)
        shared = [language for language in self.target_languages if language in text.target_languages]
        kept = {key: tensor for key, tensor in tensors.items() if key != name}
        if theirs is None or not shared or theirs.size(1) != rows.size(1):
            return kept
        for language in shared:
            rows[self.target_languages.index(language)] = theirs[text.target_languages.index(language)]
        return kept | {name: rows}

    @property
    def languages(self) -> list[str]:
        return self.text.languages

    @property
    def target_languages(self) -> list[str]:
        """Target languages; the number of a target language is its index in this list."""
        return self.text.target_languages

    @property
    def max_target_length(self) -> int:
        """Maximum number of tokens of a translation; later positions were never trained."""
        return min(self.decoder.shape.max_positions, self.text.max_length - 1)

    @property
    def _words(self) -> Tensor:
        """Input embeddings of the target vocabulary, [V, H]."""
        if self.target_embedding is not None:
            return self.target_embedding.weight
        return self.encoder.token_embedding.weight[: self.target_vocabulary.size]

    @property
    def _scores(self) -> Tensor:
        """Output embeddings of the target vocabulary, [V, H]."""
        return self._words if self.output_embedding is None else self.output_embedding.weight

    def predict(self, source: TokenBatch, target: TokenBatch, languages: Tensor) -> Predictions:
        """Predict each token of the targets except bos, given the source and the previous tokens.

        The tokens of all sentences are concatenated.

        Args:
            languages: Numbers of the target languages, int64 [B].
        """
        states = self._encode(source)
        inputs = TokenBatch(target.tokens[:, :-1], target.lengths - 1, target.host_lengths - 1)
        vectors = F.embedding(inputs.tokens, self._words, self.target_vocabulary.pad_id)
        first = self.language_embedding(languages).unsqueeze(1)
        vectors = torch.cat([first.to(vectors.dtype), vectors[:, 1:]], dim=1)
        layout, places = layout_of(inputs), Packing.of(inputs).rows
        decoded = self.decoder(vectors, layout, self._remember(states, source))
        decoded = decoded[: len(places)] if isinstance(layout, Packing) else decoded.flatten(0, 1)[places]
        labels = target.tokens[:, 1:].flatten()[places]
        if self.semantic_scale is None:
            return Predictions(decoded, labels, self._scores)
        sentences = places // inputs.tokens.size(1)
        return Predictions(decoded, labels, self._scores, self._semantic_bias(states), sentences)

    @torch.no_grad()
    def begin(self, source: TokenBatch, languages: Tensor) -> Decoding:
        """Encode sentences and prepare to translate them token by token into ``languages``, int64 [B]."""
        states = self._encode(source)
        bias = None if self.semantic_scale is None else self._semantic_bias(states).float()
        return Decoding(self, self._remember(states, source), languages, bias)

    def _encode(self, source: TokenBatch) -> Tensor:
        """Return token vectors, [B, S, H]. If the encoder is frozen, nothing is kept for a backward pass."""
        trained = any(parameter.requires_grad for parameter in self.encoder.parameters())
        with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
            return self.encoder(source)

    def _remember(self, states: Tensor, source: TokenBatch) -> SourceMemory:
        return self.decoder.remember(states, layout_of(source), source.mask if source.is_padded else None)

    def _semantic_bias(self, states: Tensor) -> Tensor:
        """Return s cos(r, E) of each sentence, [B, V]."""
        table = self.encoder.token_embedding.weight[: self.target_vocabulary.size]
        assert self.semantic_scale is not None
        lengths = table.norm(dim=1)
        # The row of padding is zero. Its cosine becomes 0, without a gradient.
        lengths = lengths.masked_fill(lengths == 0, torch.inf)
        return linear(self.semantic_scale * F.normalize(states[:, 0], dim=1), table) / lengths


class Decoding:
    """The state of a batch of sentences that are being translated, with any number K of hypotheses for each sentence.

    Nothing has a gradient. The caller must put the model into evaluation mode.
    """

    def __init__(self, model: Translation, memory: SourceMemory, languages: Tensor, bias: Tensor | None) -> None:
        self._model, self._memory, self._languages, self._bias = model, memory, languages, bias
        self._cache = StepCache(len(model.decoder.layers))
        self._position = 0

    @torch.no_grad()
    def next(self, tokens: Tensor | None = None, parents: Tensor | None = None) -> Tensor:
        """Return the logits of the next token of each hypothesis, float32 [B, K, V].

        Args:
            tokens: int64 [B, K], the last token of each hypothesis; None at the start of translation (K is 1).
            parents: int64 [B, K], the hypothesis of the last call that each hypothesis extends.
        """
        model = self._model
        if tokens is None:
            vectors = model.language_embedding(self._languages).unsqueeze(1)
        else:
            vectors = F.embedding(tokens, model._words)
        self._cache.advance(parents, vectors.size(1))
        states = model.decoder.step(vectors, self._position, self._cache, self._memory)
        self._position += 1
        logits = linear(states, model._scores).float()
        return logits if self._bias is None else logits.add_(self._bias.unsqueeze(1))

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences ``rows``, int64 [B'], because the others are finished."""
        self._cache.keep(rows)
        self._memory.keep(rows)
        self._bias = None if self._bias is None else self._bias.index_select(0, rows)


def _decoder_shape(config: Translation.Config, encoder: EncoderSizes) -> DecoderShape:
    return DecoderShape(
        hidden_size=config.decoder_hidden_size or encoder.hidden_size,
        layers=config.decoder_layers,
        heads=config.decoder_heads or encoder.heads,
        feedforward_size=config.decoder_feedforward_size or encoder.feedforward_size,
        max_positions=config.max_positions,
        source_size=encoder.hidden_size,
        norm=config.norm,
        norm_epsilon=encoder.norm_epsilon,
        activation=encoder.activation,
    )


def _check(config: Translation.Config, text: TextSpec, encoder: EncoderSizes, decoder: DecoderShape) -> None:
    for positions, whose in ((encoder.max_positions, "encoder"), (decoder.max_positions, "decoder")):
        if text.max_length > positions:
            cure = "lower `max_length`" if whose == "encoder" and config.encoder else "raise `max_positions`"
            problem = f"sentences may have {text.max_length} subwords, the {whose} has {positions} positions"
            raise UserError(problem, cure=cure)
    check_vocabulary(encoder, text.vocabulary("source"), "source")
    if decoder.hidden_size % decoder.heads:
        problem = f"the decoder's width {decoder.hidden_size} is not divisible by its {decoder.heads} heads"
        raise UserError(problem, cure="choose another `decoder_heads`")
    for option in ("semantic_bias", "tie_embeddings all"):
        asked = config.semantic_bias if option == "semantic_bias" else config.tie_embeddings == "all"
        if asked and SHARED not in text.vocabularies:
            raise UserError(f"{option}: source and target have vocabularies of their own", cure="share one")
    if config.tie_embeddings == "all" and decoder.hidden_size != encoder.hidden_size:
        problem = f"tie_embeddings all: the encoder is {encoder.hidden_size} wide, the decoder {decoder.hidden_size}"
        raise UserError(problem, cure="leave out `decoder_hidden_size`, or set `tie_embeddings` to decoder")
