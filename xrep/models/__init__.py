"""Models: the part that is kept after training.

A registered sentence model is an ``nn.Module`` with

- ``Model(config, text, architecture=None)``: a new model, or one with the sizes that ``architecture()`` of a saved
  model returned;
- ``Config.tokenizers()``: folders of the tokenizers that it brings along, by side (``shared``, or ``source`` and
  ``target``); empty if it uses the tokenizer of the text;
- ``architecture()``: plain data that is saved beside the weights;
- ``notes``: lines for the user; ``output_size``; ``languages``;
- ``pooling``: the pooling of each tower; ``new_projections``: the towers whose projection has random weights;
- ``idle_parameters``: whether training on sentence vectors leaves some parameters without gradient;
- ``tower(language)``: name of the tower that reads a language;
- ``encode(tower, TokenBatch) -> (sentence, tokens)``, [B, D] and [B, T, H]; ``encode_pair(source, target)``: sentence
  vectors of both sides; ``pooled(tower, TokenBatch)``: [B, H] and [B, T, H], before ``projections[tower]`` and
  normalisation.

A translation model (``xrep.models.translation``) has the first three, ``languages`` and ``idle_parameters``; instead of
the others it has ``predict`` and ``begin``. Either kind may have ``carried_over(tensors, text)``: it takes the tensors
of a model of another text and returns those that a run starting from that model (``--init``) can use.
"""
