"""The steps detectors share: pick the series, find its level and noise, say where it left them and whether it stays.

``select`` (which series), ``baseline`` (level and noise), ``rise`` (how it got worse), ``stall`` (that it never got
better), ``onset`` (when it began), ``persistence`` (for how long), ``recovery`` (whether it came back), ``evidence``
(how it is reported). Each is a function of arrays, or a rule: a frozen dataclass whose fields are its thresholds.
"""
