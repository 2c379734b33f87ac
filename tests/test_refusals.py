"""What commands refuse: a line of the table is a command and a part of the message that it must print.

A refused command ends with exit code 2, prints a single line of error, and writes nothing. ``...`` stands for the
options that make a working command line (``USUAL``), without those that are also behind it.
"""

import gzip
import json
import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.support.annotated import write_labels
from tests.support.commands import Commands
from tests.support.corpus import sentence_pairs, write_corpus, write_lines
from tests.support.once import made_once
from tests.support.runs import options

USUAL = {
    "train": shlex.join(["bin", *options(criterion="translation_ranking", save_dir="run", max_steps=1)]),
    "preprocess": "--bitext de-en=pairs.tsv --vocab-size 60 --destdir out",
    "encode": "--device cpu --path enc --input de.txt --output v.npy",
    "mine": "--device cpu --source-vectors x.npy --target-vectors y.npy --output m.tsv",
    "generate": "--device cpu --path nmt --max-length-b 5 --input de.txt --output hyp.txt",
    "predict": "--device cpu --path cls/best --input de.txt --output labels.txt",
    "eval": "--path enc --data tat",
    "export": "--path enc --output out",
    "report": "done --output page.html",
    "score": "--device cpu --path enc --bitext de-en=mt.de,mt.en --output m.tsv",
    "search": "--device cpu --path enc --input de.txt --output found",
}
REFUSALS = r"""
xrep trian                                   | there is no command 'trian'; did you mean 'train'?
xrep banana                                  | there is no command 'banana'; known: train, recipes, eval,
sweep r.yaml --save-dir s --grid seed=1,2    | --grid 'seed=1,2'; name seeds by --seeds 1,2,3
sweep r.yaml --save-dir s --grid checkpoint.save_dir=a,b | leave it out: each run has a folder of its own in
sweep r.yaml --save-dir s --grid optimizer.lr=1e-3,0.001 | lr1e-3 and lr0.001 are the same run; name each value
xrep completion csh                          | no completion for 'csh'; write xrep completion bash, or zsh, tcsh

data get ../../etc/passwd                    | unknown corpus or pretrained encoder '../../etc/passwd'
data get un --print-path                     | xrep cannot fetch un for you; join and unpack the parts
data                                         | the following arguments are required: COMMAND

train --criterion dual_moco                  | no task is chosen; set --task to one of bitext,
train bin --task bitext                      | no criterion is chosen; set --criterion to one of angle,
train ... --criterion dual_moko              | unknown criterion 'dual_moko'; did you mean 'dual_moco'?
train ... --task bitex                       | unknown task 'bitex'; did you mean 'bitext'?
train ... --learning-rate 1                  | unknown option --learning-rate; --help lists the options
train pairs.tsv --task similarity --criterion cosent --tempratur 1 | unknown option --tempratur; did you mean '--tempe
train ... --towers                           | argument --towers: expected one argument
train ... --max-steps many                   | trainer.max_steps must be an integer or none, not 'many'
train ... --seed 9223372036854775807         | seed must lie in [0, 4294967295], not
train ... --lr -1                            | optimizer.lr must be at least 0, not -1.0
train ... --temperature 0                    | criterion.temperature must lie in [0.0001, 10000], not 0.0
train ... --mask-margin -5                   | criterion.mask_margin must lie in [-1, 10], not -5.0
train ... --mask-margin 0 --guide x.npy      | guide and guide_text belong together; give both
train ... --mask-margin 0 --guide x.npy --guide-text de.txt | x.npy: 50 vectors, but de.txt has 3 lines; --guide must be
train ... --mask-margin 0 --guide y.npy --guide-text mt.de  | mt.de: lacks 60 of 60 training sentences that need a
train ... --directions sideways              | criterion.directions must be both or forward, not 'sideways'
train ... --heads 5                          | hidden_size 32 is not divisible by heads 5
train ... --save-dir=                        | checkpoint.save_dir must be a string
train ... --criterion dual_moco --queue-size 1000000000000 | GB of memory, and this machine has
train ... --criterion nli                    | the criterion reads labelled pairs, and the task gives translations
train swapped --task classification --criterion classification --languages de --save-dir x | labels of 40 texts, such as
train ... --criterion cosent                 | reads scored pairs, and the task gives translations; set --task to simil
train ... --batch-by sentence                | task.batch_by must be language_pair, corpus or none, not 'sentence'
train pairs.tsv --task similarity --criterion cosent | pairs.tsv:1: 2 columns and no header that names them; write
train pairs.tsv --task similarity --criterion angle --lowest-score 5 | lowest_score 5 must be below highest_score 5
train ... --task translation                 | unknown option --towers
train ... --task monolingual --criterion tlm | bin: no training text found; expected news.de, train.de
train ... --criterion frozen_source          | a frozen source needs a tower of its own, and this model has one
train ... --criterion frozen_source --teacher y.npy | y.npy: a file, not the directory of a pretrained encoder; give a
train raw ... --criterion frozen_source --teacher enc --encoder none --vocab-size 60 | enc: vectors of 16 numbers
train ... --criterion frozen_source --teacher enc | was tokenised with another vocabulary than that of the pretrained
train raw ... --criterion frozen_source --teacher enc --sides both --towers separate | both is for one student
train ... --batch-size 900                   | 630 training pairs do not fill a batch of 900; lower --batch-size
train ... --max-length 99                    | sentences may have 99 subwords, the model has 32 positions; lower --ma
train ... --validation sts                   | validation.sts_path has no default; give it
train ... --config broken.yaml               | broken.yaml:2: not a valid configuration: did not find expected node
train ... --config twice.yaml                | twice.yaml:3: not a valid configuration: found duplicate key seed
train ... --config list.yaml                 | list.yaml: is not a mapping of sections; write for example 'task: bitext'
train --config parts.yaml                    | parts must be a list of the values of each item
train ... --config absent.yaml               | absent.yaml: no such file or recipe; name a YAML file, or one
train ... --config moco_bert/en-hz           | moco_bert/en-hz: no such file or recipe; did you mean 'moco_bert/en-zh'?
train ... --config dir                       | dir: no such file or recipe; name a YAML file
train ... --init absent                      | absent: no such checkpoint; name a directory such as RUN/best or RUN/last
train ... --init done                        | done: a directory of a run, not a checkpoint; did you mean done/best?
train ... --init hf                          | hf: a pretrained encoder, not a checkpoint; encode sentences by
train ... --encoder absent                   | absent: no such directory
train ... --encoder raw                      | raw: no config.json: not the directory of a pretrained encoder; name
train ... --encoder two --encoder-type transformer | two: which of its towers?; two/source or two/target
train raw ... --encoder lfs --encoder-type transformer | a pointer of Git LFS
train ... --encoder gpt2 --encoder-type transformer | gpt2/config.json: a model of type 'gpt2'; xrep's own
train raw ... --encoder deep --encoder-type transformer | deep: the weights do not fit: Error(s) in loading
train ... --encoder bare --encoder-type transformer | no such tokenizer: neither tokenizer.json nor
train ... --plugin absent_plugin             | the plugin 'absent_plugin' cannot be imported: ModuleNotFoundError: No
train ... --plugin a/b.py                    | the plugin 'a/b.py' cannot be imported:
train ... --save-dir de.txt                  | de.txt: File exists
train ... --save-dir dir                     | dir: is not empty and holds no run; choose another --save-dir
train absent ... --task bitext               | absent: no such folder
train dir ... --task bitext                  | dir: no parallel training text
train one_side ... --task bitext             | one_side: train has de, which makes no pairs; expected train.de-en.de
train done ... --task nli --criterion nli    | done/launches.jsonl:1: no keys of a label and a text; name them
train --data de=mt.de --task monolingual --towers shared --criterion tlm --batch-size 4 | task gives single sentences;
train bin --task translation --criterion label_smoothed_cross_entropy --max-tokens none | task.batch_size must be given
train bin --task translation --criterion label_smoothed_cross_entropy --source-prompt x | task.source_prompt and target_
train bin --task translation --criterion label_smoothed_cross_entropy --direction back | task.direction must be forward

preprocess --bitext de-en --destdir out      | cannot read the parallel text 'de-en'; write de-en=FILE.tsv
preprocess --bitext de-de=pairs.tsv --destdir out | names de twice
preprocess --bitext de-en=absent --destdir out | absent: no such file; check the name
preprocess --bitext de-en=hf:./absent:train:a,b --destdir out | ./absent: no such folder; check the name
preprocess --bitext de-en=hf:dir:train:a --destdir out | hf:dir:train:a: not the name of a data set; write hf:NAME:SPLIT
preprocess --bitext de-en=empty.txt,de.txt --destdir out | empty.txt: the file is empty
preprocess --bitext de-en=blank.tsv --destdir out | no training pair is left (2 read
preprocess --bitext de-en=mt.de,de.txt --destdir out | mt.de:4: 40 lines, but de.txt has 3; align
preprocess --bitext de-en=latin.txt,de.txt --destdir out | latin.txt:2: invalid UTF-8 (byte 3 of the line); convert
preprocess --bitext de-en=truncated.tsv.gz --destdir out | truncated.tsv.gz: damaged or truncated; fetch it again
preprocess --bitext de-en=ragged.tsv --destdir out | ragged.tsv:3: 1 column
preprocess --bitext de-en=pairs.tsv:9,1 --destdir out | 2 columns where 9 columns are needed
preprocess --bitext de-en=pairs.tsv:0,1 --destdir out | needs two different columns
preprocess --bitext de-en=pairs.tsv@0 --destdir out | a sample of 0 pairs
preprocess ... --valid de-en=pairs.tsv@3     | only training text is sampled
preprocess ... --valid-size 1.5              | --valid-size: must be an integer, not '1.5'
preprocess ... --valid-size -1               | --valid-size: must be at least 0, not -1
preprocess ... --sampling-exponent 2         | --sampling-exponent: must lie in [0, 1], not 2
preprocess ... --max-length 0                | --min-length 0.5 is more than --max-length 0
preprocess --bitext de-en=pairs.tsv --destdir out --tokenizer pairs.tsv | pairs.tsv: not a SentencePiece model
preprocess ... --tokenizer bin --vocab-size 9 | no vocabulary is trained, but --vocab-size is given; leave it or the
preprocess ... --exclude empty.txt           | empty.txt: no text could be read from it, so it would exclude nothing
preprocess ... --destdir dir                 | dir: exists and is not empty
preprocess ... --destdir de.txt/out          | de.txt/out.job: Not a directory
preprocess ... --json pairs.tsv              | --json is the same file as

encode --path enc                            | the following arguments are required: --input, --output; xrep-encode
encode ... --path absent                     | absent: no such directory, and no such model in the Hugging Face cache
encode ... --path cls/best                   | cls/best: a classifier, not a sentence encoder; predict by xrep-predict
encode ... --path dir                        | dir: not a checkpoint
encode ... --path damaged                    | damaged/model.safetensors: damaged checkpoint: the file differs from its
encode ... --path two                        | a tower for each side and no language was named; known: de, en
encode ... --path two --lang fra             | no tower for the language 'fr'; known: de, en
encode ... --lang de-en                      | --lang de-en: a pair, where each language is named alone; give de, or
encode ... --lang "de; rm"                    | --lang 'de; rm' is no language code; give one such as de, deu or zh-Hans
encode ... --lang xx                         | --lang 'xx' is no language code; give one such as de, deu or zh-Hans
encode ... --input absent                    | absent: no such file; check the name
encode ... --input dir                       | dir: a folder, not a file; name a file in it
encode ... --output v.txt                    | v.txt: the output is a .npy file or a folder; give a name
encode ... --output absent/v.npy             | absent: no such folder; make it first, or write elsewhere
encode ... --output - --json                 | --output and --json both go to standard output; name
encode ... --device cuda:99                  | cuda:99 is not a device of this machine; choose another --device, such as
encode ... --workers 2                       | --workers is an option of Ray; add --engine ray, or leave it out
WORLD_SIZE=2 RANK=5 encode ...               | this is process 5 of 2; the environment variable RANK must count from 0

mine --output m.tsv                          | no source; give --source FILE with --path, or --source-vectors FILE.npy
mine --source de.txt --target-vectors y.npy --output m.tsv | no encoder for de.txt; give --path or --source-vectors
mine ... --source-vectors absent.npy         | absent.npy: no such file; check the name
mine ... --source-vectors de.txt             | de.txt: not a file of vectors, or a truncated one
mine ... --source-vectors nan.npy            | nan.npy:3: the vector of this row is not finite
mine ... --source-vectors zero.npy           | zero.npy:1: the vector of this row is zero; encode that sentence again
mine ... --source-vectors wide.npy           | wide.npy: vectors of 9 numbers, but y.npy has 8
mine ... --source de.txt                     | de.txt:4: 3 lines, but x.npy has 50 vectors; row i must be the vector of
mine ... --neighbours 41                     | lower --neighbours to 40, or give more sentences
mine ... --output m.tmx                      | .tmx needs the text and the language of the source; give --source and
mine ... --threshold nan                     | argument --threshold: must be a finite number or none, not 'nan'
mine ... --threshold 1 --least-precision 0.9 | --threshold and --least-precision both choose the pairs; give one of
mine ... --trusted de-en=mt.de,mt.en         | no encoder for the trusted pairs; give --path, the encoder of the vectors
mine ... --trusted de-en=mt.de,mt.en --path enc | x.npy: vectors of 8 numbers, but enc has 16
mine ... --trusted de-en=mt.de,mt.en --path enc --source-lang fr | mt.de: trusted pairs of de-en; the source is fr
mine --path enc --source mt.de --target mt.en --output m.tsv --trusted de-en=mt.de,mt.en | mt.de: 0 trusted pairs,
mine ... --index tree                        | --index tree is not possible: could not parse index string tree

score ... --bitext de-en=mt.de,de.txt        | mt.de:4: 40 lines, but de.txt has 3; align the files line by line
score ... --bitext de-en=ragged.tsv          | ragged.tsv:3: 1 column where two columns are needed; separate source
score ... --bitext de-en=mt.de,mt.de         | mt.de: too few pairs (left out: 40 identical); give more, or change the
score ... --bitext de-en=mt.de,mt.en@5       | pairs are not sampled here; leave out @5
score ... --bitext fr-en=mt.de,mt.en --path two | no tower for the language 'fr'; known: de, en
score ... --neighbours 41                    | lower --neighbours to 40, or give more pairs, or further sentences by --
score ... --keep 0.5 --threshold 1           | --keep and --threshold both choose the pairs; give one of them
score ... --keep 0.5 --trusted de-en=mt.de,mt.en | the trusted pairs choose the threshold; leave out --keep and
score ... --trusted fr-en=mt.de,mt.en        | mt.de: trusted pairs of fr-en; give pairs of de-en
score ... --trusted de-en=one.de,one.de --keep-identical | one.de: too few pairs (left out: none)
score ... --least-precision 0.9              | --least-precision is that of trusted pairs; give --trusted
score ... --background fr=mt.de              | mt.de: text of fr; give text of de or en
score ... --output m.parquet.gz              | m.parquet.gz: a file of Parquet is compressed already; name it m.parquet
mine ... --output m.json                     | m.json: this format is not written; write one of .tsv, .tmx, .xlf
mine negatives --path enc --bitext de-en=mt.de,mt.en --output m.tmx | m.tmx: this format is not written; write
mine ... --least-precision 0.9               | too few sentences to judge their scores; give trusted
score ... --plot m.bmp                       | m.bmp: a plot is one of .png, .svg, .pdf
score ... --output mt.en                     | --output is the same file as
mine ... --output mined.tsv                  | mined.tsv.job: not the folder of an unfinished command; rename
mine ... --output x.npy                      | x.npy: --output is the same file as --source-vectors
mine ... --output - --json -                 | --output and --json both go to standard output; name a file
mine ... --output /dev/full                  | No space left on device
mine negatives --path enc --bitext de-en=/dev/stdin --output m.tsv | /dev/stdin: pairs are read several times; give
WORLD_SIZE=many mine ...                     | WORLD_SIZE is 'many', not a number

search query absent Hund                     | absent: no such index; build it with xrep-search build
search query dir Hund                        | dir: not an index
search query index Hund --path two           | index: its vectors were made by another encoder
search add index --input absent              | absent: no such file
search add index --input de.txt --index x    | unrecognized arguments: --index x; xrep-search add --help lists
search build ... --input blank.tsv           | blank.tsv: no sentence in it; give a text with sentences
search build ... --output dir                | dir: exists and is not empty
search build ... --output enc/index          | enc/index: an index inside
search build ... --output de.txt/index       | de.txt: no such folder; make it first
search build ... --path nmt                  | nmt: a translation model, not a sentence encoder; translate by
search build ... --index IVF4,banana         | --index IVF4,banana is not possible: could not parse

generate ... --path enc                      | enc: a sentence encoder, not a translation model; encode sentences by
generate ... --path absent                   | absent: no such checkpoint; name a directory
generate ... --input latin.txt               | latin.txt:2: invalid UTF-8
generate ... --output dir                    | dir: is a folder already
generate ... --output de.txt                 | --output is the same file as --input
generate ... --reference absent              | absent: no such file; check the name
generate ... --json s.json                   | --json without scores to write; give --reference FILE
generate ... --nbest 6                       | --nbest 6 is more than the 5 hypotheses of the beam
generate ... --sampling-topk 5               | --sampling-topk is an option of sampling, which is off
generate ... --sampling --sampling-topp 1.5  | argument --sampling-topp: must lie in (0, 1], not 1.5
generate ... --min-length 9 --max-length-a 0 | --min-length 9 is more than the greatest length 5

predict --input de.txt                       | the following arguments are required: --path
predict ... --path enc                       | enc: a sentence encoder, not a classifier; encode sentences by
predict ... --input wide.tsv                 | wide.tsv:1: 3 columns, where a line is text
predict ... --input pairs.tsv                | pairs.tsv:1: 2 columns, where a line is text
predict ... --output de.txt                  | --output is the same file as --input

eval nowhere --path enc                      | argument COMMAND: invalid choice: 'nowhere'
eval tatoeba --path enc                      | the following arguments are required: --data
eval tatoeba ... --path absent               | absent: no such directory, and no such model in the Hugging
eval tatoeba ... --path de.txt               | de.txt: not a checkpoint
eval tatoeba ... --path vectors              | vectors/sentences.tsv:
eval tatoeba ... --data absent               | absent: no such folder; name the folder of LASER's
eval tatoeba ... --data dir                  | dir: no file tatoeba.{xxx}-eng.{xxx} in it; name the folder
eval tatoeba ... --langs xx                  | xx; the data has
eval tatoeba ... --dimensions 8 --resamples r.json | --resamples with --dimensions; measure one model, and one width
eval tatoeba ... --margin ratio --neighbours 41 | 40 pairs of de, but 41 are needed; give smaller --neighbours
eval tatoeba ... --remove-components 16      | --remove-components 16 of vectors 16 wide
eval tatoeba ... --drop-overlap              | no training hashes beside the encoder
eval tatoeba ... --plot plot.banana          | a plot is one of .png,
eval tatoeba ... --json tat/tatoeba.deu-eng.deu | --json is the same file as --data
eval tatoeba ... --cache de.txt              | de.txt: is a file already
eval tatoeba ... --random-baseline -1        | --random-baseline: must be at least 0, not -1
eval alignment ... --random-baseline --every-checkpoint | --every-checkpoint with --random-baseline; measure one
eval translation ... --data mt.{lang} --langs de | enc: a sentence encoder, not a translation model
eval language-bias ... --data mt.{lang} --sentences 1 | fewer than 2 sentences
eval scatter ... --data mt.{lang} --plot o.png --seed -1 | --seed: must lie in [0, 4294967295], not -1
eval alignment ... --data de-en=mt.de,mt.en  | 40 pairs, but 1000 and 750 others
eval alignment ... --data sts/sts-test.csv --positive-above 5 | no pair scores higher than 5
eval alignment ... --data de-en=mt.de,mt.en --resamples r.json | this evaluation resamples no figure; leave --resamples
eval sts ... --data sts --split dev          | no STS data set with a dev split in it
eval sts ... --data bad_sts                  | bad_sts/sts-test.csv:2: '5.1' is not a score of 0 to 5; fetch the file
eval bucc ... --data bucc                    | there is no split but dev
eval xsim ... --data bucc                    | bucc: no devtest files in it; name flores200_dataset/ or NTREX-128/, or
eval xsim ... --data de-en=pairs.tsv --neighbours 999 | 999 neighbours, but there are 120
eval bucc ... --data bucc --oracle --langs de-fr | no BUCC files of de-fr; the data has de-en
eval bucc ... --data bucc --oracle --threshold 1 | --oracle and --threshold; give one of them
eval xsim ... --data de-en=mt.de,mt.en@9      | mt.de: pairs are not sampled here; leave out @9
eval tatoeba ... --path vectors --precision int8 | --precision of vectors that another system computed; leave it out
eval nli ... --data sts                      | sts/sts-test.csv: holds triplets without labels
eval senteval ... --data dir                 | dir: none of SentEval's sets is in it; name the folder of
eval xnli ... --data dir                     | dir: no labelled text; name a file, or a folder of files that
eval ner --path cls/best --data labels       | predicts labels of texts, not tags of words
eval amazon --path cls/best --data strange   | strange/test-de.tsv:2: the label 'hungry' does not occur in
eval all ... --data dir                      | dir: no data of any test in it
eval all ... --langs ,                       | --langs ',' names nothing; give names, separated by commas
eval xtreme ... --retrieval enc              | --path enc, and other options name the models; leave --path out

export ... --path dir                        | dir: not a checkpoint
export ... --output dir                      | dir: exists and is not empty
export ... --output /proc/out                | /proc/out
export ... --format pdf                      | --format: invalid choice: 'pdf'
export ... --average 0                       | argument --average: must be at least 1, not 0
export ... --average 3                       | enc: has 0 checkpoints
export ... --no-projection                   | enc: has no projection to leave out; export it without --no
export ... --format hf --pooling cls         | are for the format sentence-transformers and graphs, not
export ... --path nmt --format onnx          | nmt: its model 'translation' cannot be exported to onnx; set --format to
export ... --path nmt --format sentence-transformers | --format to xrep, or to hf for its encoder alone
export ... --format ctranslate2              | enc: a sentence encoder, not a translation model; encode sentences by
export ... --format ctranslate2 --layer 1    | --layer is for encoders in the formats of other libraries; leave --format
export ... --format ctranslate2 --pooling cls | are for the format sentence-transformers and graphs, not
export ... --format hf --precision int8      | --precision is for the format ctranslate2, not for hf; set --format to
export ... --path cls/best --format openvino | --format to xrep, or to hf for the encoder and its head
export ... --vocabulary-from absent.de       | absent.de: no such file; check the name
export ... --vocabulary-from empty.txt       | empty.txt: the file is empty
export ... --vocabulary-from blank.tsv       | blank.tsv: no text for the shared side; name text in its languages
export ... --vocabulary-from de.txt --keep 0 | argument --keep: must be at least 1, not 0
export ... --keep 20                         | --keep needs --vocabulary-from; name the text whose subwords it counts
export ... --static-size 20                  | --static-size is for the format static; set --format to static, or
export ... --path nmt --vocabulary-from de.txt | nmt: --vocabulary-from is for sentence encoders; leave it out
export ... --path no_unk --vocabulary-from de.txt | tokenizer.json: no unk token: the vocabulary has no <none>; name
export ... --path int8 --vocabulary-from de.txt --format xrep | int8: in int8, which cannot become smaller; export
export ... --path nmt --format static        | nmt: its model 'translation' cannot be exported to static; set --format
export ... --format static --static-size 99  | static vectors of 99 numbers, of an encoder that gives 16; set --static
export ... --format static --static-size 0   | argument --static-size: must be at least 1, not 0

report absent --output page.html             | absent: no such directory; name the directory of a run
report dir --output page.html                | dir: holds no run; name the directory of a run
report done ...                              | a run is named twice
report ... --results broken.yaml             | broken.yaml: not a result
report ... --results done/summary.json       | summary.json: not a result
report ... --output done/metrics.jsonl       | --output is the same file as a file of RUN
"""
ROWS = [row for row in REFUSALS.splitlines() if row]


def _inputs(folder: Path) -> None:
    """Write a classifier, an index, damaged and foreign models, and files of every kind that a row names."""
    from tests.support.encoders import write_encoder
    from xrep.inference.export import export_path
    from xrep.inference.search_index import SearchIndex
    from xrep.inference.sentence_encoder import SentenceEncoder
    from xrep_cli.train import main

    pairs, words = sentence_pairs(40), ("klein", "alt", "neu")
    german, english = zip(*pairs, strict=True)
    texts = {
        "de.txt": [*german[:3]], "mt.de": german, "mt.en": english, "empty.txt": [], "blank.tsv": ["\t", "\t"],
        "pairs.tsv": [f"{one} {word}\t{two} {word}" for one, two in pairs for word in words],
        "ragged.tsv": ["a\tb", "c\td", "e"], "wide.tsv": ["a\tb\tc"],
        "broken.yaml": ["task: ["], "twice.yaml": ["task: bitext", "seed: 1", "seed: 2"], "list.yaml": ["[1]"],
        "parts.yaml": ["parts:"], "one.de": german[:1],
        "r.yaml": ["task: {name: bitext, data: bin}", "criterion: {name: translation_ranking}"],
        "dir/notes.md": ["mine"], "mined.tsv.job/notes.txt": ["mine"],
        "swapped/train-de.tsv": [f"{one}\t{'ab'[i % 2]}" for i, one in enumerate(german)],
        "one_side/train.de-en.de": ["Guten Tag"], "strange/test-de.tsv": ["awake\tdas Haus", "hungry\tdas Kind"],
        "tat/tatoeba.deu-eng.deu": german, "tat/tatoeba.deu-eng.eng": english,
        "sts/sts-test.csv": [f"m\tM\t1\t{i}\t{i % 6}\t{one}\t{two}" for i, (one, two) in enumerate(pairs)],
        "bad_sts/sts-test.csv": ["n\tM\t1\t1\t4\ta\tb", "n\tM\t1\t2\t5.1\tc\td"],
        "bucc/de-en.dev.de": [f"d{i}\t{text}" for i, text in enumerate(german)],
        "bucc/de-en.dev.en": [f"e{i}\t{text}" for i, text in enumerate(english)],
        "bucc/de-en.dev.gold": [f"d{i}\te{i}" for i in range(40)],
        "vectors/sentences.tsv": [f"de\t{text}" for text in german],
    }  # fmt: skip
    for name, lines in texts.items():
        write_lines(folder / name, lines)
    (folder / "latin.txt").write_bytes("Haus\nbrücke\n".encode("latin1"))
    (folder / "truncated.tsv.gz").write_bytes(gzip.compress(os.urandom(2000).hex().encode())[:500])
    draw = np.random.default_rng(0)
    x = draw.normal(size=(50, 8)).astype(np.float32)
    for name, array in {"x": x, "y": x[:40] + 1, "wide": draw.normal(size=(50, 9))}.items():
        np.save(folder / f"{name}.npy", array)
    for name, row, value in (("nan", 2, np.nan), ("zero", 0, 0)):
        np.save(folder / f"{name}.npy", np.where(np.arange(50)[:, None] == row, np.float32(value), x))
    np.save(folder / "vectors" / "vectors.npy", x[:9])
    write_corpus(folder / "raw", train=60, valid=10, test=10)
    encoder = write_encoder(folder / "damaged")
    SearchIndex.build(SentenceEncoder.load(encoder, device="cpu"), english, folder / "index")
    export_path(encoder, folder / "hf", "hf")
    for name in ("lfs", "gpt2", "deep", "bare", "no_unk"):
        (folder / name).mkdir()
        for file in (folder / "hf").iterdir():
            (folder / name / file.name).write_bytes(file.read_bytes())
    (folder / "lfs" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "bare" / "tokenizer.json").unlink()
    export_path(encoder, folder / "int8", "int8")
    (folder / "no_unk" / "special_tokens_map.json").write_text('{"unk_token": "<none>"}')
    for name, changes in {"gpt2": {"model_type": "gpt2"}, "deep": {"num_hidden_layers": 2}}.items():
        config = json.loads((folder / name / "config.json").read_text()) | changes
        (folder / name / "config.json").write_text(json.dumps(config))
    (encoder / "model.safetensors").write_bytes((encoder / "model.safetensors").read_bytes()[:-1] + b"x")
    tiny = options(task="classification", criterion="classification", max_steps=1, vocab_size=50, languages="de")
    del tiny[tiny.index("--towers") : tiny.index("--towers") + 2]
    assert main([str(write_labels(folder / "labels")), *tiny, "--save-dir", str(folder / "cls")]) == 0


@pytest.fixture
def folder(tmp_path, data_directory, shared_encoder, separate_encoder, translator, trained_run) -> Path:
    """A folder with links to everything that a row may name."""
    named = {"bin": data_directory, "enc": shared_encoder, "two": separate_encoder, "nmt": translator}
    named |= {"done": trained_run, **{path.name: path for path in made_once("refusals", _inputs).iterdir()}}
    for name, path in named.items():
        (tmp_path / name).symlink_to(path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=[row.partition("|")[0].strip() for row in ROWS])
def test_refused(row: str, cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    line, _, message = row.partition("|")
    words = line.split()
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("="))
    name, *words = words
    usual = USUAL.get(name, "")
    if words and words[0] != "..." and name == "train":  # data other than the usual ones
        usual = usual.removeprefix("bin ")
    usual = re.sub(r"(--\S+) \S+", lambda match: "" if match[1] in words else match[0], usual)
    given = shlex.split(" ".join(words).replace("...", usual))
    result = cli(name, *given)
    program = "xrep" if name == "xrep" else f"xrep-{name}"
    lines = result.err.splitlines()
    assert result.code == 2, result
    assert lines[-1].startswith(f"{program}: error: ") and message.strip() in lines[-1], result.err
    assert len(re.findall("error: ", result.err)) == 1 and "Traceback" not in result.err, result.err
    assert not result.wrote
