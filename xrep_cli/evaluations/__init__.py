"""The subcommands of ``xrep-eval``, a module each, of which only the chosen one is imported.

A module has ``DESCRIPTION`` (what ``--help`` prints, with an example that begins ``xrep-eval NAME --path run1/best``),
``add_options(parser)``, which begins with ``common.add_options(parser, ...)``, and ``run(options, encoders) ->
common.Report``. It reads its data first, then asks ``encoders.open()`` for the encoder, draws ``--plot`` itself, and
prints nothing: ``xrep_cli.eval`` prints the report and writes ``--json``. On its top level it imports neither torch nor
numpy.
"""
