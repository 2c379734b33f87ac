"""Translation model: an encoder, which may be pretrained, and a decoder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from xrep.config.fields import Count
from xrep.data.batch import TextSpec, TokenBatch
from xrep.errors import UserError
from xrep.interop.exported import write_huggingface
from xrep.kernels.int8 import Int8Product, quantise
from xrep.kernels.linear import PackedWeight, fused_linear, linear
from xrep.models.model import ForTransformers, TranslationModel
from xrep.models.start import StartOptions, build_encoder
from xrep.nn.decoder import SourceKeys, StepCache, TransformerDecoder
from xrep.nn.encoder import Encoder, initialise_by_width, require_words
from xrep.nn.layers import Packing, is_quantised, layout_of
from xrep.nn.shape import DecoderShape, EncoderSizes
from xrep.text.sides import SHARED
from xrep.text.tokenizer import Tokenizer


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
    equation 7, brings r and E together), and s is a learned scale, initialised to ``semantic_scale``.

    Raises:
        UserError: Sentences may be longer than the position tables; a pretrained directory cannot be read or does not
            fit the text; or the options need a shared vocabulary and there is none.
    """

    in_transformers = "its encoder alone"

    @dataclass(kw_only=True)
    class Config(StartOptions):
        usual_tower = "source"
        share_vocabulary: bool = True
        """Whether the decoder uses the vocabulary of the pretrained encoder. If not, only the source side of the text
        uses it, and the target side has its own vocabulary."""
        decoder_layers: Count = 4
        """Number of layers of the decoder (HiCTL: 4 in section 4.2, 6 in table 4)."""
        decoder_hidden_size: Count | None = None
        """Width of the decoder; none: the width of the encoder."""
        decoder_heads: Count | None = None
        """Number of attention heads of the decoder; none: as many as the encoder has."""
        decoder_feedforward_size: Count | None = None
        """Width of the decoder's feed-forward networks; none: the same as in the encoder."""
        tie_embeddings: Literal["all", "decoder", "none"] = "decoder"
        """Which embedding tables share their weights. decoder: the decoder's input and output tables. all: these and
        the encoder's table, which needs a shared vocabulary and equal widths. none: no tables."""
        semantic_bias: bool = False
        """Add to the logits of each step the similarity of each word to the source sentence, which is the cosine of the
        encoder's [CLS] vector and the word's embedding, times a learned scale (HiCTL, section 3.2). Needs a shared
        vocabulary."""
        semantic_scale: float = 20.0
        """Initial value of this scale: 1 / word_temperature of the run that trained the encoder with the word-level
        contrast, at which it was trained to tell the words of a sentence from others. The paper has neither of the two:
        its plain sum is 1 with --freeze semantic_scale."""

        def pretrained(self) -> dict[str, str]:
            return {SHARED if self.share_vocabulary else "source": self.encoder} if self.encoder else {}

    def __init__(self, config: Config, text: TextSpec, architecture: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self.text, saved = config, text, architecture or {}
        self.source_vocabulary, self.target_vocabulary = text.vocabulary("source"), text.vocabulary("target")
        _ = self.target_vocabulary.end  # where a translation ends; a UserError says that there is none
        self.encoder, self.origins = build_encoder(config, text, "source", saved.get("encoder"))
        shape = self.encoder.shape
        decoder_shape = DecoderShape(**saved["decoder"]) if saved else _decoder_shape(config, shape)
        _check(config, text, self.encoder, decoder_shape)
        self._architecture = architecture or {"encoder": shape.as_dict(), "decoder": asdict(decoder_shape)}
        width = decoder_shape.hidden_size
        if not saved and not self.origins:
            self.encoder.apply(initialise_by_width)
        self.decoder = TransformerDecoder(decoder_shape, **config.rates)
        words = self.target_vocabulary
        tied = config.tie_embeddings
        target = None if tied == "all" else nn.Embedding(words.size, width, padding_idx=words.pad_id)
        self.target_embedding: nn.Embedding | None = target
        self.output_embedding = nn.Embedding(words.size, width) if tied == "none" else None
        self._packed_scores: PackedWeight | Int8Product | None = None
        self.language_embedding = nn.Embedding(len(text.target_languages), width)
        for own in (self.target_embedding, self.output_embedding, self.language_embedding):
            if own is not None:
                initialise_by_width(own)
        self.semantic_scale = nn.Parameter(torch.tensor(config.semantic_scale)) if config.semantic_bias else None

    def architecture(self) -> dict[str, Any]:
        return self._architecture

    def write_for_transformers(self, directory: Path, tokenizer: Tokenizer, max_length: int) -> ForTransformers:
        write_huggingface(directory, self.encoder, tokenizer, max_length=max_length)
        languages = self.text.source_languages
        return ForTransformers(
            opening=self.encoder.library_class,
            pipeline="feature-extraction",
            about=f"The encoder of a model trained with xrep to translate from {', '.join(languages)}; the decoder is "
            "left out. It gives a vector for each token.",
            encoder=self.encoder,
            languages=languages,
        )

    def carried_over(self, tensors: dict[str, Tensor], text: TextSpec) -> dict[str, Tensor]:
        # Language vectors are matched by the names of the languages.
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
        return self.text.target_languages

    @property
    def max_target_length(self) -> int:
        # Later positions were never trained.
        return min(self.decoder.shape.max_positions, self.text.max_length - self.target_vocabulary.leading_count)

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

    def pack_scores(self) -> None:
        """Prepare the output embeddings for searches: in int8 if the layers are, else in the order of the product."""
        if is_quantised(self):
            self._packed_scores = Int8Product(*quantise(self._scores), torch.zeros(len(self._scores)))
        else:
            self._packed_scores = PackedWeight.of(self._scores)

    def score(self, states: Tensor) -> Tensor:
        """Return the logits of all words, float32 [B, K, V], for outputs of the decoder [B, K, H] in a search."""
        if isinstance(self._packed_scores, Int8Product):
            return self._packed_scores(states.flatten(0, 1)).unflatten(0, states.shape[:2])
        logits = fused_linear(states, self._scores, None, packed=self._packed_scores)
        return (linear(states, self._scores) if logits is None else logits).float()

    def predict(self, source: TokenBatch, target: TokenBatch, languages: Tensor) -> Predictions:
        states = self._encode(source)
        # The language's vector is read in the place of bos, or in front of a sentence that has none.
        leading = self.target_vocabulary.leading_count
        labels = TokenBatch(target.tokens[:, leading:], target.lengths - leading, target.host_lengths - leading)
        vectors = F.embedding(labels.tokens[:, :-1], self._words, self.target_vocabulary.pad_id)
        first = self.language_embedding(languages).unsqueeze(1)
        vectors = torch.cat([first.to(vectors.dtype), vectors], dim=1)
        layout, places = layout_of(labels), Packing.of(labels).rows
        decoded = self.decoder(vectors, layout, self._keys_of(states, source))
        decoded = decoded[: len(places)] if isinstance(layout, Packing) else decoded.flatten(0, 1)[places]
        words = labels.tokens.flatten()[places]
        if self.semantic_scale is None:
            return Predictions(decoded, words, self._scores)
        sentences = places // labels.tokens.size(1)
        return Predictions(decoded, words, self._scores, self._semantic_bias(states), sentences)

    @torch.no_grad()
    def begin(self, source: TokenBatch, languages: Tensor) -> Decoding:
        states = self._encode(source)
        bias = None if self.semantic_scale is None else self._semantic_bias(states).float()
        return Decoding(self, self._keys_of(states, source), languages, bias)

    def _encode(self, source: TokenBatch) -> Tensor:
        """Return token vectors, [B, S, H]. If the encoder is frozen, nothing is kept for a backward pass."""
        trained = any(parameter.requires_grad for parameter in self.encoder.parameters())
        with torch.set_grad_enabled(trained and torch.is_grad_enabled()):
            return self.encoder(source)

    def _keys_of(self, states: Tensor, source: TokenBatch) -> SourceKeys:
        return self.decoder.keys_of(states, layout_of(source), source.mask if source.is_padded else None)

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

    def __init__(self, model: Translation, source: SourceKeys, languages: Tensor, bias: Tensor | None) -> None:
        self._model, self._source, self._languages, self._bias = model, source, languages, bias
        self._cache = StepCache(len(model.decoder.layers), source.keys[0])
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
        states = model.decoder.step(vectors, self._position, self._cache, self._source)
        self._position += 1
        logits = model.score(states)
        return logits if self._bias is None else logits.add_(self._bias.unsqueeze(1))

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keep only the sentences ``rows``, int64 [B'], because the others are finished."""
        self._cache.keep(rows)
        self._source.keep(rows)
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


def _check(config: Translation.Config, text: TextSpec, encoder: Encoder, decoder: DecoderShape) -> None:
    words = encoder.token_embedding.weight.size(1)  # less than the width of states in ALBERT
    if text.max_length > decoder.max_positions:
        problem = f"sentences may have {text.max_length} subwords, the decoder has {decoder.max_positions} positions"
        raise UserError(problem, cure="raise `max_positions`")
    for option in ("semantic_bias", "tie_embeddings all"):
        asked = config.semantic_bias if option == "semantic_bias" else config.tie_embeddings == "all"
        if asked and SHARED not in text.vocabularies:
            raise UserError(f"{option}: source and target have vocabularies of their own", cure="share one")
    if decoder.hidden_size % decoder.heads:
        problem = f"the width of the decoder, {decoder.hidden_size}, is not divisible by its {decoder.heads} heads"
        raise UserError(problem, cure="set `decoder_heads` or `decoder_hidden_size`")
    if config.tie_embeddings == "all" and decoder.hidden_size != words:
        problem = f"tie_embeddings all: the encoder's embeddings are {words} wide, the decoder {decoder.hidden_size}"
        raise UserError(problem, cure=f"set `decoder_hidden_size` to {words}, or `tie_embeddings` to decoder")
    if config.semantic_bias:
        require_words(encoder, "semantic_bias")
