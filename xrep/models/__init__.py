"""Models: what is kept after training.

A registered sentence model is an ``nn.Module`` with

- ``Model(config, text, architecture=None)``: fresh, or with the sizes that ``architecture()`` of a saved one told;
- ``Config.tokenizers()``: folders of the tokenizers it brings, by side (``shared``, or ``source`` and ``target``);
  empty if it reads the subwords of the text's own;
- ``architecture()``: plain data, saved beside the weights;
- ``notes``: lines for the user; ``output_size``; ``languages``;
- ``pooling``: of each tower; ``new_projections``: towers whose projection has random weights;
- ``idle_parameters``: whether training on sentence vectors leaves some parameters without gradient;
- ``tower(language)``: name of the tower that reads a language;
- ``encode(tower, TokenBatch) -> (sentence, tokens)``, [B, D] and [B, T, H]; ``encode_pair(source, target)``: sentence
  vectors of both sides; ``pooled(tower, TokenBatch)``: [B, H] and [B, T, H], before ``projections[tower]`` and
  normalisation.

A translation model (``xrep.models.translation``) has the first three, ``languages`` and ``idle_parameters``, and
``predict`` and ``begin`` in the place of the others. Either may have ``carried_over(tensors, text)``: the tensors of a
model of another text, as a run that starts from it (``--init``) can take them.
"""
