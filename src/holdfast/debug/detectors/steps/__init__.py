"""The steps that detectors share: select a series, find its level and noise, and see where it leaves them for good.

``select`` (which series), ``baseline`` (level and noise), ``rise`` (how it got worse), ``stall`` (whether it never
improved), ``onset`` (when it began), ``persistence`` (for how long), ``recovery`` (whether it came back), ``evidence``
(how it is reported). Each is a function of arrays, or a rule: a frozen dataclass whose fields are its thresholds.
"""
