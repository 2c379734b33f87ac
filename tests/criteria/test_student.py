"""A student of all languages: both sides learn the vectors of a teacher, which encodes the text once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.criteria.test_frozen_source_vectors import make, write_teacher
from tests.support.corpus import sentence_pairs, write_corpus, write_lines
from tests.support.encoders import write_encoder
from tests.support.planning import plan
from tests.support.runs import compose_run
from xrep.criteria.frozen_source import FrozenSource
from xrep.criteria.teacher import vectors_of_teacher
from xrep.errors import UserError
from xrep.inference.sentence_encoder import SentenceEncoder
from xrep.tasks.bitext import BitextTask
from xrep.text.cleaning import sentence_hashes
from xrep.text.sides import SIDES


def equation(
    config: FrozenSource.Config, students: list[Tensor], teacher: Tensor, ids: Tensor, queue: Tensor, guide: Any
) -> Tensor:
    """The loss in plain loops, over the sides, the rows, and the teacher's vectors that each is compared with."""
    loss, keys = torch.zeros((), dtype=torch.float64), SIDES.index(config.source_side)
    for side, vectors in enumerate(students):
        for row, vector in enumerate(vectors):
            near = vector @ teacher.T if guide is None else guide[row, side] @ guide[:, keys].T
            scores = [vector @ teacher[row] / config.temperature]
            for other in range(len(teacher)):
                is_equal = config.mask_equal_sentences and bool((ids[other] == ids[row]).any())
                is_near = config.mask_margin is not None and bool(near[other] > near[row] + config.mask_margin)
                if other != row and not is_equal and not is_near:
                    scores.append(vector @ teacher[other] / config.temperature)
            scores += [vector @ key / config.temperature for key in queue]
            contrast = torch.stack(scores).exp().sum().log() - scores[0]
            squared = (vector - teacher[row]).pow(2).sum()
            loss = loss + contrast * (config.loss != "mse") + squared * (config.loss != "contrastive")
    return loss


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("given", [
    {"loss": "contrastive"}, {"loss": "mse"}, {"loss": "both"},
    {"loss": "both", "queue_size": 8, "mask_equal_sentences": True},
    {"loss": "both", "mask_margin": -0.1}, {"mask_margin": 0.05, "guide": "guide.npy"},
], ids=str)  # fmt: skip
def test_both_sides_learn_the_teachers_vectors(
    text: Any, make_batch: Any, tmp_path: Path, side: str, given: dict[str, Any]
) -> None:
    pairs = sentence_pairs(7)
    pairs = [*pairs, (pairs[0][0], pairs[3][1])]
    files = write_teacher(tmp_path, list({pair[["source", "target"].index(side)]: None for pair in pairs}))
    if "guide" in given:
        lines = sorted({sentence for pair in pairs for sentence in pair})
        np.save(tmp_path / "guide.npy", np.random.default_rng(5).normal(size=(len(lines), 6)))
        written = write_lines(tmp_path / "guide.txt", lines)
        given = {**given, "guide": str(tmp_path / "guide.npy"), "guide_text": str(written)}
    options = {
        "sides": "both",
        "source_side": side,
        "temperature": 0.3,
        "learnable_temperature": False,
        **given,
        **files,
    }
    model, criterion = make(text, towers="shared", **options)
    batch = make_batch(pairs)
    queue = torch.empty(0, 32, dtype=torch.float64)
    if criterion.queue is not None:
        queue = torch.nn.functional.normalize(torch.randn(5, 32), dim=1)
        criterion.queue.enqueue(queue, torch.full((5, 2), -1))
    model.double()
    criterion.double()
    planned = plan(criterion, batch)
    planned.details = planned.details.double()
    found = criterion(model, planned).terms["frozen_source"].sum
    found.backward()
    gradients = {name: weights.grad for name, weights in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    students = [model.encode("shared", tokens)[0] for tokens in (batch.source, batch.target)]
    teacher = torch.nn.functional.normalize(planned.details, dim=1)
    guide = planned.batch.guide.double() if "guide" in given else None
    expected = equation(criterion.config, students, teacher, batch.ids, queue.double(), guide)
    expected.backward()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for name, weights in model.named_parameters():
        torch.testing.assert_close(gradients[name], weights.grad, rtol=1e-5, atol=1e-6, msg=name)


def test_a_teacher_encodes_each_sentence_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of validation, and sentences without words, which share a vector; another call goes on, or takes what
    there is."""
    monkeypatch.setenv("XREP_HOME", str(tmp_path / "home"))
    corpus, teacher = write_corpus(tmp_path / "text", 60, 9, 1), write_encoder(tmp_path / "teacher", size=16)
    for language in ("de", "en"):
        lines = (corpus / f"train.de-en.{language}").read_text(encoding="utf-8").splitlines()
        write_lines(corpus / f"train.de-en.{language}", [*lines, *lines[:5], "?!" if language == "en" else "wie"])
    run = compose_run(corpus, tmp_path / "run", criterion="frozen_source", vocab_size=60, max_steps=1)
    task = BitextTask(run.configs["task"], 1)
    given, counts, encode = (str(teacher), task, "target", 16), list[int](), SentenceEncoder.encode

    def stopped(self: SentenceEncoder, sentences: list[str], *more: Any, **how: Any) -> np.ndarray:
        counts.append(len(sentences))
        if len(counts) == 1:
            raise KeyboardInterrupt
        return encode(self, sentences, *more, **how)

    monkeypatch.setattr(SentenceEncoder, "encode", stopped)
    with pytest.raises(KeyboardInterrupt):
        vectors_of_teacher(*given)
    found = vectors_of_teacher(*given)
    assert counts[1:] == [70]  # 60 and 9 different sentences, and one without words
    english = [(corpus / f"{split}.de-en.en").read_text(encoding="utf-8").splitlines() for split in ("train", "valid")]
    lines = [line for some in english for line in some]
    expected = encode(SentenceEncoder.load(teacher), lines)
    np.testing.assert_allclose(found.read(sentence_hashes(lines)), expected, atol=1e-3)  # which are kept in float16
    assert len(counts) == 2 and vectors_of_teacher(*given).width == 16 and len(counts) == 2
    with pytest.raises(UserError, match="vectors of 16 numbers, the model's have 32; set `projection_size` to 16"):
        vectors_of_teacher(str(teacher), task, "target", 32)
    with pytest.raises(UserError, match="absent: no such checkpoint"):
        vectors_of_teacher(str(tmp_path / "absent"), task, "target", 32)


def test_two_towers_are_no_student_of_all_languages(text: Any) -> None:
    with pytest.raises(UserError, match="`sides` both is for one student .*; set `towers` to shared"):
        make(text, towers="separate", sides="both")
