"""xrep-export: write a model as a directory for other libraries, or for xrep."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Annotated

from xrep.inference.settings import ExportOptions
from xrep_cli import common
from xrep_cli.command import Command


@dataclass(kw_only=True)
class Options(common.Plugins):
    """Write a model as a directory that sentence-transformers, transformers, ONNX Runtime, OpenVINO, CTranslate2 or
    xrep load, with its tokenizer.

      # For sentence-transformers; it prints the Python line that opens the directory
      xrep-export --path run1/best --format sentence-transformers --output my-encoder
      # For ONNX Runtime
      xrep-export --path run1/best --format onnx --output my-encoder-onnx
      # The mean of the last five checkpoints, for xrep
      xrep-export --path run1 --average 5 --format xrep --output run1-mean

    If the encoder has a tower for each side of its language pairs, sentence-transformers (5 or newer) opens both as one
    model, and the language of the sentences is the task:

      SentenceTransformer("my-encoder").encode(["Hallo"], task="de")

    my-encoder/source and my-encoder/target can also be opened alone; --format hf writes these two. A README says which
    is which. Reading a directory back into xrep gives the same weights, bit by bit. transformers always gives BERT a
    row of token types, which xrep's encoders lack. The export writes zeros there, and its README has the lines that
    keep them zero when transformers trains; a row that was trained is added to the positions when xrep reads it.

    --format onnx writes onnx/model.onnx, and --format openvino writes openvino/openvino_model.xml, in float32 and where
    sentence-transformers looks for them (backend="onnx"). Pooling, projection and normalisation are inside: input_ids
    and attention_mask become sentence_embedding. The vectors are compared with the encoder's before the directory
    appears.

    The mean of the last checkpoints of a run often measures better than any of them, and most papers on translation
    measure it. Train with --save-every 500 --keep-last 5 to have them. --average writes a checkpoint without what only
    training needs, which xrep-eval, xrep-encode, xrep-generate and xrep-train --init read.

    --format int8 writes a checkpoint of a run's model, or of a pretrained encoder, whose transformer layers are in
    int8, a quarter of their size. It gives the vectors that --precision int8 gives, and cannot be trained further:

      xrep-export --path run1/best --format int8 --output run1-int8
      xrep-encode --path run1-int8 --input lines.txt --output vectors.npy

    --format ctranslate2 writes a translator, with --precision int8 in a quarter of the space. Its translations are
    compared with xrep's before the directory appears, whose README has the Python lines that translate:

      xrep-export --path nmt/best --format ctranslate2 --precision int8 --output nmt-ctranslate2

    Most of a small multilingual encoder are the embeddings of subwords that you never need. --vocabulary-from keeps
    those of your text, and gives its sentences the same vectors, in every format. --format static goes further: it
    keeps one vector for each subword, whose mean is the vector of a sentence. That takes less than a fiftieth of the
    time and knows nothing of the order of words; xrep-train --encoder my-static goes on training it:

      xrep-export --path run1/best --vocabulary-from text.de text.en --output my-small
      xrep-export --path run1/best --format static --output my-static

    For a translation model, --format hf writes only the encoder. README.md is a model card with metadata for the
    Hugging Face Hub: languages, the checksums of the training data and, if they are given, licence and results:

      xrep-eval all --path run1/best --data data/ --json results.json
      xrep-export --path run1/best --output my-encoder --license apache-2.0 --results results.json"""

    path: Annotated[str, common.Option(metavar="ENCODER")]
    """A checkpoint such as run1/best, or a pretrained directory; with --average the directory of a run."""
    output: Annotated[str, common.Option(metavar="DIR", writes=common.check_here)]
    """A new directory."""
    export: ExportOptions


def run(options: Options) -> None:
    from xrep.inference.export import export_path

    written = export_path(options.path, options.output, note=print, **asdict(options.export))
    print(*written, *(f"  {line}" for line in written.values()), sep="\n")


main = Command("xrep-export", Options, run)

if __name__ == "__main__":
    sys.exit(main())
