"""The translator: steps equal the whole, its options have effect, and its parts start from given weights."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.closeness import assert_near
from tests.support.corpus import sentence_pairs
from tests.support.encoders import write_encoder
from tests.support.translators import make_translator, write_translator
from xrep.data.batch import Batch, TextSpec, Vocabulary
from xrep.errors import UserError
from xrep.kernels.linear_cross_entropy import CrossEntropy, linear_cross_entropy
from xrep.models.directory import fingerprint, load_model, open_checkpoint
from xrep.models.translation import Predictions, Translation
from xrep.text.sides import open_tokenizer

SMALL = {"layers": 2, "hidden_size": 32, "heads": 4, "feedforward_size": 64, "max_positions": 48, "decoder_layers": 2}
EIGHT = torch.zeros(8, dtype=torch.int64)
"""The language of eight pairs."""
EVERY = [(norm, tie, bias) for norm in ("post", "pre") for tie in ("all", "decoder", "none") for bias in (False, True)]


def make_model(text: TextSpec, **options) -> Translation:
    torch.manual_seed(0)
    model = Translation(Translation.Config(**{**SMALL, **options}), text).eval()
    for parameter in model.parameters():  # so that attention has an effect
        parameter.data.mul_(4 if parameter.dim() > 1 else 1)
    return model


def text_of(source: Vocabulary, target: Vocabulary | None = None, languages: list[str] | None = None) -> TextSpec:
    own = {"shared": source} if target is None else {"source": source, "target": target}
    return TextSpec(vocabularies=own, max_length=48, source_languages=["de"], target_languages=languages or ["en"])


@pytest.fixture
def batch(make_batch) -> Batch:
    """Eight pairs of mixed lengths, padded on both sides."""
    pairs = enumerate(sentence_pairs(8))
    return make_batch([(" ".join(german.split()[: 1 + n]), english * (1 + n % 2)) for n, (german, english) in pairs])


def teacher_forced(model: Translation, batch: Batch, languages: Tensor) -> tuple[Tensor, Tensor]:
    found = model.predict(batch.source, batch.target, languages)
    logits = found.vectors @ found.matrix.t()
    return (logits if found.bias is None else logits + found.bias[found.sentences]), found.labels


def loss_of(found: Predictions) -> CrossEntropy:
    return linear_cross_entropy(found.vectors, found.matrix, found.labels, bias=found.bias, groups=found.sentences)


def stepped(model: Translation, batch: Batch, languages: Tensor) -> Tensor:
    """Return the same logits from steps of four hypotheses, one of which is the target, at changing places."""
    tokens, rows, draw = batch.target.tokens, torch.arange(len(batch)), torch.Generator().manual_seed(1)
    decoding = model.begin(batch.source, languages)
    steps, place = [decoding.next()[:, 0]], torch.zeros_like(rows)
    for position in range(1, tokens.size(1) - 1):
        count = 1 if position == 1 else 4
        extended, parents = (torch.randint(5, (len(rows), 4), generator=draw) for _ in range(2))
        parents %= count
        new = torch.randint(4, rows.shape, generator=draw)
        extended[rows, new], parents[rows, new] = tokens[:, position], place
        place = new
        steps.append(decoding.next(extended, parents)[rows, place])
    return torch.stack(steps, dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(("norm", "tie", "bias"), EVERY)
def test_steps_equal_the_whole(text, batch, norm: str, tie: str, bias: bool) -> None:
    model = make_model(text, norm=norm, tie_embeddings=tie, semantic_bias=bias)
    with torch.no_grad():
        logits, labels = teacher_forced(model, batch, EIGHT)
        steps = stepped(model, batch, EIGHT)
    real = torch.arange(steps.size(1)) < (batch.target.lengths - 1).unsqueeze(1)
    assert labels.tolist() == batch.target.tokens[:, 1:][real].tolist()
    assert_near(steps[real], logits)


def test_a_translation_does_not_depend_on_the_batch(text, batch) -> None:
    model = make_model(text, semantic_bias=True)
    with torch.no_grad():
        together, _ = teacher_forced(model, batch, EIGHT)
        ones = [teacher_forced(model, batch.rows(i, i + 1), EIGHT[:1])[0] for i in range(8)]
    assert_near(together, torch.cat(ones))
    found = model.predict(batch.rows(0, 0).source, batch.rows(0, 0).target, EIGHT[:0])
    assert found.vectors.shape == (0, 32) and found.labels.shape == (0,) and loss_of(found).loss == 0


def test_sentences_leave(text, batch) -> None:
    model = make_model(text, semantic_bias=True)
    rows = torch.tensor([1, 4, 6])
    tokens, parents = torch.full((8, 3), 7), torch.zeros(8, 3, dtype=torch.int64)
    every, some = (model.begin(batch.source, EIGHT) for _ in range(2))
    every.next(), some.next()
    every.next(tokens, parents), some.next(tokens, parents)
    some.keep(rows)
    expected, found = every.next(tokens, parents)[rows], some.next(tokens[rows], parents[rows])
    assert_near(found, expected, 2e-6)


def test_the_semantic_bias_is_a_scaled_cosine(text, batch) -> None:
    """The logits are z + s cos([CLS], E); with s = 0 they are those of the plain model."""
    model = make_model(text, semantic_bias=True).double()
    assert model.semantic_scale == 20 and make_model(text, semantic_bias=True, semantic_scale=1.0).semantic_scale == 1
    plain = make_model(text).double()
    model.load_state_dict(plain.state_dict(), strict=False)
    with torch.no_grad():
        without, _ = teacher_forced(plain, batch, EIGHT)
        for scale in (0.0, -2.5):
            model.semantic_scale.fill_(scale)
            cls, table = model.encoder(batch.source)[:, 0], model.encoder.token_embedding.weight
            cosine = (cls @ table.t()) / cls.norm(dim=1, keepdim=True) / table.norm(dim=1).clamp_min(1e-12)
            of_token = cosine.repeat_interleave(batch.target.lengths - 1, dim=0)
            found, _ = teacher_forced(model, batch, EIGHT)
            torch.testing.assert_close(found, without + scale * of_token, rtol=0, atol=1e-9)
            first = model.begin(batch.source, EIGHT).next()[:, 0]
            ahead = (batch.target.lengths - 1).cumsum(0) - (batch.target.lengths - 1)
            assert_near(first, found[ahead])


def test_gradients_reach_every_parameter(text, batch) -> None:
    for tie in ("all", "decoder", "none"):
        model = make_model(text, semantic_bias=True, tie_embeddings=tie).train()
        found = model.predict(batch.source, batch.target, EIGHT)
        loss_of(found).loss.backward()
        # The row of padding is zero and has no direction: normalised, it would have a gradient of 1e12.
        table = model.encoder.token_embedding.weight
        assert table.grad[text.vocabulary("source").pad_id].abs().max() < 10 * table.grad.abs().mean() + 1
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_the_language_vector_is_the_first_input(tokenizer, batch) -> None:
    text = text_of(Vocabulary.of(tokenizer), languages=["en", "es", "fr"])
    model = make_model(text)
    assert model.target_languages == ["en", "es", "fr"]
    assert model.language_embedding.weight.std() > 0.04
    with torch.no_grad():
        given = (EIGHT, EIGHT + 1, torch.tensor([0, 1] * 4))
        en, es, mixed = (model.begin(batch.source, languages).next() for languages in given)
    assert not torch.allclose(en, es, atol=1e-3)
    torch.testing.assert_close(mixed[0::2], en[0::2], rtol=0, atol=1e-6)
    torch.testing.assert_close(mixed[1::2], es[1::2], rtol=0, atol=1e-6)


def test_languages_are_carried_over_by_their_names(text) -> None:
    few, many, other = (
        dataclasses.replace(text, target_languages=own.split()) for own in ("fr es", "de en fr", "cs it")
    )
    ours, theirs = make_model(few), make_model(many)
    found = ours.carried_over(theirs.state_dict(), many)
    rows = found["language_embedding.weight"]
    assert torch.equal(rows[0], theirs.language_embedding.weight[2])
    assert torch.equal(rows[1], ours.language_embedding.weight[1])
    assert torch.equal(found["encoder.norm.weight"], theirs.encoder.norm.weight)
    assert found.keys() == ours.state_dict().keys()
    # of as many other languages, none is known
    assert "language_embedding.weight" not in ours.carried_over(make_model(other).state_dict(), other)


def test_tied_tables_are_one(text) -> None:
    models = {tie: make_model(text, tie_embeddings=tie) for tie in ("all", "decoder", "none")}
    sizes = {tie: sum(p.numel() for p in model.parameters()) for tie, model in models.items()}
    table = text.vocabulary("target").size * 32
    assert sizes["none"] - sizes["decoder"] == table and sizes["decoder"] - sizes["all"] == table


def test_vocabularies_and_widths_of_their_own(text, tokenizer, batch) -> None:
    source = Vocabulary.of(tokenizer)
    target = dataclasses.replace(source, size=source.size + 9)
    separate = text_of(source, target)
    assert make_model(separate).begin(batch.source, EIGHT).next().size(2) == target.size
    model = make_model(text, decoder_hidden_size=24, decoder_heads=3, semantic_bias=True)
    assert model.predict(batch.source, batch.target, EIGHT).vectors.size(1) == 24
    for own, options, message in (
        (separate, {"semantic_bias": True}, "vocabularies of their own"),
        (separate, {"tie_embeddings": "all"}, "vocabularies of their own"),
        (text, {"decoder_hidden_size": 24, "tie_embeddings": "all"}, "32 wide, the decoder 24"),
        (text, {"decoder_hidden_size": 30}, "not divisible"),
        (text, {"max_positions": 47}, "raise `max_positions`"),
    ):
        with pytest.raises(UserError, match=message):
            make_model(own, **options)


def test_starts_from_the_encoder_of_a_run(tmp_path: Path) -> None:
    path = write_encoder(tmp_path / "run", size=32)
    text = text_of(Vocabulary.of(open_tokenizer(path / "tokenizer")))
    config = Translation.Config(encoder=str(path), decoder_layers=1)
    assert list(config.tokenizers()) == ["shared"]
    assert list(Translation.Config(encoder=str(path), share_vocabulary=False).tokenizers()) == ["source"]
    model = Translation(config, text)
    saved = open_checkpoint(path).tensors()
    for name, tensor in model.encoder.state_dict().items():
        assert torch.equal(tensor, saved[f"encoders.shared.{name}"])
    assert model.decoder.shape.hidden_size == 32 and len(model.encoder.layers) == 1
    assert model.origins["encoder"].path == path / "shared"
    with pytest.raises(UserError, match="set `pretrained_layers` to a number up to 1"):
        Translation(Translation.Config(encoder=str(path), pretrained_layers=5), text)
    alone = "pretrained_layers needs a pretrained encoder; a new one has `layers`"
    assert Translation.Config(pretrained_layers=5).problems() == [alone]


@pytest.mark.slow
def test_a_checkpoint_holds_all_of_it(batch, tmp_path: Path) -> None:
    for tie in ("all", "none"):
        options = {"tie_embeddings": tie, "semantic_bias": True}
        checkpoint = open_checkpoint(write_translator(tmp_path / tie / "best", **options))
        model, loaded = make_translator(checkpoint.text, **options), load_model(checkpoint)
        batch.source.tokens %= checkpoint.text.vocabulary("source").size
        batch.target.tokens %= checkpoint.text.vocabulary("target").size
        assert fingerprint(loaded, checkpoint.text) == fingerprint(model, checkpoint.text)
        assert torch.equal(teacher_forced(loaded, batch, EIGHT)[0], teacher_forced(model, batch, EIGHT)[0])
