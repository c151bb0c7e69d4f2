"""The page of a run: one self-contained file to share, and the same page live.

A ``Page`` is plain data: a verdict in words, charts over one axis of steps, flags, events. It is made from a debugger's
report (``page_of_report``) or from a run's folder (``page_of_run``), and drawn by one script that knows neither. Every
string in it is text and stays text.
"""

from holdfast.page.from_report import page_of_report, render_report
from holdfast.page.from_run import page_of_run
from holdfast.page.model import Chart, Event, Flag, Line, Page
from holdfast.page.render import render_page

__all__ = ["Chart", "Event", "Flag", "Line", "Page", "page_of_report", "page_of_run", "render_page", "render_report"]
