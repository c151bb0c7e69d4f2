"""A page with everything on it, its texts hostile."""

from __future__ import annotations

import numpy as np

from holdfast.page.model import Bucket, Cause, Chart, Event, Flag, HeatMap, Line, Mark, Page, Suspect, Table

HOSTILE = (
    '<script>document.title="pwned"</script>',
    "</script><img src=x onerror=\"document.title='pwned'\">",
    "javascript:document.title='pwned'",
    "\u2028\u2029</title><svg onload=document.title='pwned'>",
    "${document.title='pwned'}<!--",
)


def full_page(steps: int = 2000, text: str = "calm", series: int = 1) -> Page:
    """Return a page with charts, flags, events and all else, with ``text`` wherever text can stand."""
    axis = np.arange(float(steps))
    rng = np.random.default_rng(0)
    loss = 3 * np.exp(-axis / steps) + 0.05 * rng.normal(size=steps)
    loss[steps // 2] = 40.0
    broken = loss.copy()
    broken[-5:] = np.nan
    lines = [Line("loss", axis, loss), Line(text, axis, broken)]
    curve = Chart("proof", (Line("as it was", axis[:50], loss[:50]), Line("masked", axis[:50], loss[50:100])))
    flag = Flag(
        title=f"Loss spike {text}",
        severity="critical",
        onset=steps / 2 - 3,
        certain=steps / 2 + 2,
        last=steps / 2 + 40,
        signal=text,
        confidence=0.93,
        evidence=(text, "rose from 1.2 to 40 within 3 steps"),
        causes=(Cause(text, 0.8, text, (text,), (text,)), Cause("bad data window", 0.1)),
        advice=text,
        suspects=(Suspect(text, 12_345, 9.1, text), Suspect("chat", 7, 3.0, "plain")),
        proof=curve,
        proof_verdict=text,
        command=f"holdfast prove runs/exp7 --step 1000 # {text}",
    )
    info = Flag(
        title="Plateau", severity="info", onset=None, certain=None, last=None, signal="", confidence=0.5, advice=""
    )
    charts = [Chart(f"Loss {text}", tuple(lines))]
    charts += [Chart(f"Series {n}", (Line(f"s{n}", axis, rng.normal(size=steps)),)) for n in range(series - 1)]
    return Page(
        title=f"runs/exp7 {text}",
        verdict="unhealthy",
        lead=text,
        facts=(text, "2 series"),
        charts=tuple(charts),
        flags=(flag, info),
        events=(Event(100, "checkpoint", text), Event(steps / 2, "rollback", text), Event(300, text, text)),
        goodput=(Bucket("step", 90.0, axis, np.full(steps, 90.0 / steps)), Bucket("data", 5.0), Bucket(text, 5.0)),
        heat_maps=(
            HeatMap(
                text,
                tuple(Line(name, axis[:40], np.abs(rng.normal(size=40))) for name in (text, "layers.1")),
                (Mark(1, 10, 20, text),),
                text,
            ),
        ),
        tables=(Table(text, (text, "bytes fetched"), ((text, "1.5 MB"),), text),),
        command=f"holdfast blame runs/exp7 --step 1000 # {text}",
        notes=(text,),
        config={text: text, "lr": 3e-4},
        changed=(("lr", text, "1e-4"),),
        environment={"host": text},
    )
