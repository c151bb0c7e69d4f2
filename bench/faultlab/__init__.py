"""The fault lab: real small training runs with known faults, and how well the debugger names them.

``python -m bench.faultlab generate`` trains every run of the plan (each with its healthy twin: same seed, same data, no
fault) and writes its log and its label; ``python -m bench.faultlab score`` reads the logs back and compares. The labels
are written from what the fault did to the run against its twin, before any detector has seen it.
"""
