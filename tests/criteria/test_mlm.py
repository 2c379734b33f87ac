"""mlm and tlm against the plain formula in float64, sentence by sentence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.corpus import sentence_pairs
from tests.support.planning import loss_of, plan, sizes_of, token_batch
from xrep.criteria.mlm import MLM
from xrep.criteria.tlm import TLM, read_together
from xrep.data.batching import PairBatch, TextSpec, TokenBatch, Vocabulary, collate
from xrep.data.masking import Masked, mask_tokens
from xrep.errors import UserError
from xrep.models.dual_encoder import DualEncoder
from xrep.nn.layers import Masking
from xrep.tasks.monolingual import SentenceBatch

SMALL = {"layers": 2, "hidden_size": 16, "heads": 2, "feedforward_size": 32, "max_positions": 48}


def make_model(text: TextSpec, towers: str = "shared", dropout: float = 0.0, **options: Any) -> DualEncoder:
    torch.manual_seed(0)
    rates = {"dropout": dropout, "attention_dropout": dropout}
    config = DualEncoder.Config(towers=towers, **{**SMALL, **rates, **options})
    model = DualEncoder(config, text).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def make_criterion(kind: type[MLM], model: DualEncoder, text: TextSpec, **options: Any) -> MLM:
    torch.manual_seed(1)
    criterion = kind(kind.Config(**options), model, text).double()
    with torch.no_grad():
        for parameter in criterion.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return criterion


@pytest.fixture
def batch(make_batch) -> PairBatch:
    batch = make_batch(sentence_pairs(9))
    batch.languages = batch.languages.clone()
    batch.languages[4:] = torch.tensor([1, 0])
    return batch


def alone(batch: PairBatch) -> SentenceBatch:
    return SentenceBatch(batch.source, batch.indices, batch.languages[:, 0])


def tower_batches(batch: Any, towers: str, text: TextSpec) -> dict[str, TokenBatch]:
    if isinstance(batch, SentenceBatch):
        return {"shared": batch.sentences}
    if towers == "separate":
        return {"source": batch.source, "target": batch.target}
    return {"shared": batch.source.followed_by(batch.target, text.vocabulary("shared").pad_id)}


def states(encoder: nn.Module, embedded: Tensor) -> Tensor:
    """Return the embeddings [T, H] of one sentence."""
    x = encoder.norm(embedded).unsqueeze(0)
    for layer in encoder.layers:
        x = layer(x, Masking())
    return x[0]


def find(criterion: MLM, model: DualEncoder, tower: str, masked: Masked, embedded: list[Tensor]) -> Tensor:
    """Return the logits of the masked tokens [M, V] by BERT's formula, row by row."""
    encoder, head, width = model.encoders[tower], criterion.language.heads[tower], masked.batch.tokens.size(1)
    logits = []
    for position in masked.positions.tolist():
        row, column = divmod(position, width)
        hidden = states(encoder, embedded[row])[column]
        hidden = F.gelu(hidden @ head.dense.weight.T + head.dense.bias)
        hidden = (hidden - hidden.mean()) / (hidden.var(unbiased=False) + head.norm.eps).sqrt()
        hidden = hidden * head.norm.weight + head.norm.bias
        logits.append(hidden @ encoder.token_embedding.weight.T + head.bias)
    return torch.stack(logits)


def gradients(total: Tensor, *modules: nn.Module) -> dict[str, Tensor | None]:
    both = nn.ModuleList(modules)
    both.zero_grad()
    total.backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in both.named_parameters()}


def assert_same(found: Any, expected: Tensor, labels: Tensor, model: DualEncoder, criterion: MLM, name: str) -> None:
    """Loss, gradients and metrics are those of logits [M, V] and labels."""
    loss = F.cross_entropy(expected, labels, reduction="sum")
    assert found.terms[name].sum.item() == pytest.approx(loss.item(), abs=1e-9)
    right = (expected.argmax(dim=1) == labels).double().mean()
    assert found.metrics["accuracy"].item() == pytest.approx(100 * right.item(), abs=1e-4)
    assert found.metrics["perplexity"].item() == pytest.approx((loss / len(labels)).exp().item(), rel=1e-6)
    assert found.rows == {"accuracy": len(labels), "perplexity": len(labels)}
    ours, theirs = gradients(found.terms[name].sum, model, criterion), gradients(loss, model, criterion)
    for parameter, gradient in theirs.items():
        assert gradient is not None or "projections" in parameter
        if gradient is not None:
            torch.testing.assert_close(ours[parameter], gradient, rtol=0, atol=1e-9, msg=parameter)


@pytest.mark.parametrize("towers", ["shared", "separate", "one side"])
def test_mlm(text, batch, towers: str) -> None:
    batch = alone(batch) if towers == "one side" else batch
    towers = "shared" if towers == "one side" else towers
    model = make_model(text, towers)
    criterion = make_criterion(MLM, model, text)
    planned = plan(criterion, batch, 5)
    found, generator = criterion(model, planned), torch.Generator().manual_seed(5)
    logits, labels = [], []
    for tower, own in tower_batches(batch, towers, text).items():
        masked = mask_tokens(own, text.vocabulary(tower), 0.15, generator)
        encoder = model.encoders[tower]
        embedded = [
            encoder.token_embedding(ids[:length]) + encoder.position_embedding(torch.arange(length))
            for ids, length in zip(masked.batch.tokens, own.lengths.tolist(), strict=True)
        ]
        logits.append(find(criterion, model, tower, masked, embedded))
        labels.append(masked.labels)
    assert planned.sizes == {"mlm": sum(map(len, labels))} and len(labels[0]) >= 9
    assert_same(found, torch.cat(logits), torch.cat(labels), model, criterion, "mlm")


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("languages", [False, True])
def test_tlm(text, batch, reset: bool, languages: bool) -> None:
    model = make_model(text, max_positions=96)
    criterion = make_criterion(TLM, model, text, position_reset=reset, language_embeddings=languages)
    planned = plan(criterion, batch, 5)
    found = criterion(model, planned)
    encoder, vocabulary = model.encoders["shared"], text.vocabulary("shared")
    rows, positions, of_language = [], [], []
    for pair, (x, y) in enumerate(zip(batch.source.tokens, batch.target.tokens, strict=True)):
        x, y = x[: batch.source.lengths[pair]], y[1 : batch.target.lengths[pair]]
        assert x[0] == vocabulary.bos_id and x[-1] == y[-1] == vocabulary.eos_id
        rows.append(torch.cat([x, y]))
        again = torch.arange(len(y)) + 1
        positions.append(torch.cat([torch.arange(len(x)), again if reset else again + len(x) - 1]))
        first, second = batch.languages[pair].tolist()
        of_language.append(torch.tensor([first] * len(x) + [second] * len(y)))
    lengths = torch.tensor([len(row) for row in rows])
    padded = token_batch(nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=vocabulary.pad_id), lengths)
    masked = mask_tokens(padded, vocabulary, 0.25, torch.Generator().manual_seed(5))
    embedded = []
    for ids, length, place, language in zip(masked.batch.tokens, lengths.tolist(), positions, of_language, strict=True):
        vectors = encoder.token_embedding(ids[:length]) + encoder.position_embedding(place)
        embedded.append(vectors + criterion.language_embedding(language) if languages else vectors)
    logits = find(criterion, model, "shared", masked, embedded)
    assert planned.sizes == {"tlm": len(masked.labels)}
    assert_same(found, logits, masked.labels, model, criterion, "tlm")


def test_the_next_sentence_is_told_from_others(text, batch) -> None:
    """Half of the second sentences are those of other pairs; the loss is that of the plain formula in float64."""
    model = make_model(text, max_positions=96)
    criterion = make_criterion(TLM, model, text, next_sentence=True, mask_rate=0.15)
    targets = zip(batch.target.tokens, batch.target.lengths, strict=True)
    drawn, ends = [], [ids[1:length].tolist() for ids, length in targets]
    for seed in range(40):
        planned = plan(criterion, batch, seed)
        masked, second, _, follows = planned.details
        drawn += follows.tolist()
        original = masked.batch.tokens.flatten().index_copy(0, masked.positions, masked.labels).view_as(second)
        read = [ids[of_y].tolist() for ids, of_y in zip(original, second, strict=True)]
        assert [own == mine for own, mine in zip(ends, read, strict=True)] == [bool(each) for each in follows]
        assert all(own in ends for own in read)
    assert 0.4 < np.mean(drawn) < 0.6
    found = criterion(model, planned)
    first = model.encoders["shared"](masked.batch)[:, 0]
    hidden = torch.tanh(first @ criterion.first.weight.T + criterion.first.bias)
    scores = (hidden @ criterion.neighbour.weight.T + criterion.neighbour.bias).exp()
    expected = -torch.log(scores[torch.arange(9), follows] / scores.sum(1)).sum()
    torch.testing.assert_close(found.terms["next_sentence"].sum, expected, rtol=1e-12, atol=0)
    assert planned.sizes["next_sentence"] == 9 and found.terms["tlm"].sum.isfinite()
    single = plan(criterion, batch.rows(0, 1))
    assert single.details[3].tolist() == [1], "a single pair has no other sentence"
    assert criterion(model, plan(criterion, batch.rows(0, 0))).terms["next_sentence"].sum == 0


def test_tlm_sees_both_sides_and_mlm_one(text, batch) -> None:
    """Another x changes the predictions for y's masked tokens, and the other way round."""
    model, other = make_model(text), batch.rows(0, 9)
    vocabulary = text.vocabulary("shared")
    for changed in ("source", "target"):
        replaced = getattr(other, changed)
        tokens = replaced.tokens.clone()
        tokens[:, 1] = (tokens[:, 1] + 1) % vocabulary.size
        together = read_together(batch.source, batch.target, vocabulary, None)
        sides = {"source": other.source, "target": other.target, changed: token_batch(tokens, replaced.lengths)}
        changed_together = read_together(sides["source"], sides["target"], vocabulary, None)
        before, after = (
            model.encoders["shared"](each.batch, positions=each.positions) for each in (together, changed_together)
        )
        unchanged = (together.second if changed == "source" else ~together.second) & together.batch.mask
        assert (before - after)[unchanged].abs().amax(dim=1).min() > 1e-4
        mlm = model.encoders["shared"](batch.source), model.encoders["shared"](sides["source"])
        assert torch.equal(*mlm) is (changed == "target")


@pytest.mark.parametrize("limit", [8, 13, 14, 30])
def test_pairs_are_cut_to_the_position_table(limit: int) -> None:
    vocabulary = Vocabulary(size=200, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    lengths = [(3, 3), (3, 20), (20, 3), (20, 20), (4, 7), (0, 0), (11, 0)]
    sides = [collate([np.arange(10, 10 + n) + 100 * k for n in side], vocabulary, 64)
             for k, side in enumerate(zip(*lengths, strict=True))]  # fmt: skip
    together = read_together(*sides, vocabulary, limit)
    rows = [ids[:n].tolist() for ids, n in zip(together.batch.tokens, together.batch.lengths, strict=True)]
    for row, second, (n, m) in zip(rows, together.second, lengths, strict=True):
        assert len(row) == min(n + m + 3, limit)
        of_x = next(i for i, number in enumerate(row) if number == 3) + 1
        x, y = row[:of_x], row[of_x:]
        assert x[0] == 2 and x[-1] == y[-1] == 3 and row.count(3) == 2
        assert x[1:-1] == list(range(10, 10 + len(x) - 2)) and y[:-1] == list(range(110, 110 + len(y) - 1))
        assert len(x) >= min(n + 2, limit // 2) and len(y) >= min(m + 1, limit // 2)
        assert second.tolist() == [of_x <= i < len(row) for i in range(len(second))]
    assert together.positions.max() < limit and together.batch.real_tokens == sum(map(len, rows))
    assert together.batch.host_lengths.tolist() == together.batch.lengths.tolist() == [len(row) for row in rows]


def test_long_pairs_are_read(make_batch, tokenizer) -> None:
    """Two sentences of max_length fit into the position table only if positions begin again."""
    words = " ".join(german for german, _ in sentence_pairs(20))
    long = make_batch([(words, words)] * 2)
    text = TextSpec(vocabularies={"shared": Vocabulary.of(tokenizer)}, max_length=48,
                    source_languages=["de"], target_languages=["en"])  # fmt: skip
    model = make_model(text)
    for reset, width in ((False, 48), (True, 95)):
        criterion = make_criterion(TLM, model, text, position_reset=reset)
        assert sizes_of(criterion, long) == {"tlm": 2 * round(0.25 * (width - 3))}
        assert torch.isfinite(loss_of(criterion, model, long).terms["tlm"].sum)


@pytest.mark.parametrize("kind", [MLM, TLM])
def test_a_part_without_rows(text, batch, kind: type[MLM]) -> None:
    """Its gradient is 0 and exists for every parameter, because other ranks wait for it."""
    model = make_model(text)
    criterion = make_criterion(kind, model, text, **({"language_embeddings": True} if kind is TLM else {}))
    empty = batch.rows(0, 0)
    loss = loss_of(criterion, model, empty)
    (name,) = loss.terms
    assert sizes_of(criterion, empty) == {name: 0} and loss.terms[name].sum.item() == 0
    assert loss.rows == {"accuracy": 0, "perplexity": 0} and all(m.item() == 0 for m in loss.metrics.values())
    for parameter, gradient in gradients(loss.terms[name].sum, model, criterion).items():
        assert gradient is not None and not gradient.any(), parameter
    whole, parts = sizes_of(criterion, batch)[name], [batch.rows(0, 4), batch.rows(4, 9)]
    assert sum(sizes_of(criterion, part)[name] for part in parts) == whole


def test_whole_words(text, batch, tokenizer) -> None:
    """Words are masked as a whole or not at all; the loss is a mean over the masked tokens, however few."""
    model = make_model(text)
    criterion = make_criterion(MLM, model, text, whole_word=True, mask_rate=0.4)
    criterion.prepare(SimpleNamespace(gives=None, tokenizers={"shared": tokenizer}))
    begins = torch.tensor(tokenizer.begins_word())
    assert begins.any() and not begins.all()
    one = alone(batch)
    planned = plan(criterion, one, 3)
    found = criterion(model, planned)
    masked = mask_tokens(one.sentences, text.vocabulary("shared"), 0.4, torch.Generator().manual_seed(3), begins)
    by_plan = planned.details["shared"]
    assert by_plan.positions.equal(masked.positions) and by_plan.batch.tokens.equal(masked.batch.tokens)
    size = planned.sizes["mlm"]
    assert 0 < len(masked.labels) < size
    mean = found.metrics["perplexity"].log().item()
    assert found.terms["mlm"].sum.item() / size == pytest.approx(mean, abs=1e-6)
    assert list(criterion.state_dict()) == list(make_criterion(MLM, model, text).state_dict())


@pytest.mark.slow
def test_learns(text, batch) -> None:
    """A few sentences are learnt by heart from the context of the masked tokens."""
    model = make_model(text).float()
    criterion = make_criterion(TLM, model, text).float()
    both = nn.ModuleList([model, criterion])
    optimizer = torch.optim.Adam(both.parameters(), lr=1e-2)
    losses = []
    for step in range(150):
        planned = plan(criterion, batch, step)
        value = criterion(model, planned).terms["tlm"].sum / planned.sizes["tlm"]
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:20])


def test_options(text, tokenizer) -> None:
    for rate in (0.0, 1.0, -0.1):
        assert MLM.Config(mask_rate=rate).problems() == [f"mask_rate must lie in (0, 1), not {rate}"]
    assert MLM.Config().problems() == TLM.Config().problems() == []
    with pytest.raises(UserError, match="tlm: all languages share one encoder; set `towers` to shared"):
        make_criterion(TLM, make_model(text, "separate"), text)
    blind = Vocabulary(**{**vars(text.vocabulary("shared")), "mask_id": None})
    spec = TextSpec(vocabularies={"shared": blind}, max_length=48, source_languages=["de"], target_languages=["en"])
    with pytest.raises(UserError, match=r"the tokenizer of the tower shared has no \[MASK\]"):
        make_criterion(MLM, make_model(spec), spec)
    projected = make_model(text, projection_size=8)
    assert make_criterion(MLM, projected, text).idle_parameters
    assert not make_criterion(MLM, make_model(text), text).idle_parameters


def test_the_head_of_a_pretrained_encoder(tmp_path) -> None:
    """Masked tokens are predicted as the model of the transformers library predicts them."""
    models = pytest.importorskip("tests.nn.small_models", reason="compares with the transformers library")
    theirs = models.make_model("BertForMaskedLM")
    directory = models.save(theirs, tmp_path / "bert")
    vocabulary = Vocabulary(size=models.VOCABULARY, pad_id=0, unk_id=1, bos_id=2, eos_id=3, mask_id=4)
    spec = TextSpec(vocabularies={"shared": vocabulary}, max_length=20, source_languages=["de"])
    write_wordpiece(directory, models.VOCABULARY)
    config = DualEncoder.Config(towers="shared", encoder=str(directory), dropout=0.0, attention_dropout=0.0)
    model = DualEncoder(config, spec)
    criterion = MLM(MLM.Config(), model, spec)
    batch = collate([np.arange(5, 5 + n) for n in (3, 17, 9)], vocabulary, 20)
    masked = criterion.language.mask("shared", batch, torch.Generator().manual_seed(0))
    vectors = masked.at_positions(model.encoders["shared"](masked.batch))
    found = criterion.language("shared", model.encoders["shared"], vectors, masked.labels)
    with torch.no_grad():
        logits = theirs(input_ids=masked.batch.tokens, attention_mask=batch.mask.long()).logits
    expected = F.cross_entropy(masked.at_positions(logits), masked.labels, reduction="sum")
    assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert criterion.warnings(None) == []
    fresh = MLM(MLM.Config(language_head="new"), model, spec)
    assert not fresh.language.heads["shared"].bias.any() and fresh.warnings(None) == []

    bare = models.save(models.make_model("BertModel"), tmp_path / "bare")
    write_wordpiece(bare, models.VOCABULARY)
    config = DualEncoder.Config(towers="shared", encoder=str(bare))
    (note,) = MLM(MLM.Config(), DualEncoder(config, spec), spec).warnings(None)
    assert note == f"{bare} has no masked language head; tower shared gets a new one"


def write_wordpiece(directory: Path, size: int) -> None:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(size - 5))]
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
