"""From a Parquet file to a pushed model, one small file for each family; made to be copied.

``python -m models.zoo.recipes.boost_lightgbm --rows 20000`` makes a table, searches parameters with
one single-threaded trial on each core, and pushes the best model under the alias ``candidate``.
They need ``pip install 'ramrack[recipes]'`` and the extra of their library. ``shared`` is what all
of them use: command line, search, push; ``loans`` is the table of those for trees, and ``nets`` is
the training of those for networks.
"""
