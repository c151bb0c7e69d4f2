"""Datasets and the loader: batches as a pure function of their step.

Read the modules in this order: ``read_batches``, the centre, with ``batch``, ``samples`` and ``collate`` (from steps to
batches); ``named_source``, ``dataset``, ``interleaved`` and ``hf`` (what is read); ``config`` (how); ``reading``,
``read_ahead`` and ``worker_processes`` (ahead of time); ``cursor`` (a rank's position) and ``loader`` (a cursor and
something that reads ahead of it); ``state``, ``state_files`` and ``adopt`` (stopping and continuing); ``provenance``
(which sample is where). ``forward`` is for data that can only be read forwards.

The names, listed in ``__init__.pyi``, load on first use: looking at a saved state needs only NumPy, reading batches
needs torch too.
"""

from __future__ import annotations

from holdfast.lazy_names import stub_names as _stub_names

__getattr__, __dir__, __all__ = _stub_names(__name__, __file__)
