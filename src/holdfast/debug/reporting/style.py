"""The style sheet of the HTML report: system fonts, light and dark, print."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--line:#e3e8ef;--page:#f5f7fa;--card:#fff;--good:#1a7f4b;--bad:#c4302b;
--warn:#b86e00;
--info:#2463b0;--unknown:#6b5b95;--plot:#2f6fd0;--band:#2f6fd033;--shade:#c4302b1f}
@media (prefers-color-scheme:dark){:root{--ink:#e6eaf0;--soft:#9aa6b5;--line:#2b333f;--page:#11151b;--card:#181e27;
--good:#45c483;--bad:#ff6b63;--warn:#f0a63c;--info:#6aa7f0;--unknown:#b3a0e0;--plot:#6aa2f5;--band:#6aa2f533;
--shade:#ff6b6326}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:880px;margin:0 auto;padding:20px 20px 60px}
.top{display:flex;gap:10px;align-items:baseline;color:var(--soft);font-size:13px;padding:4px 2px 14px}
.brand{font-weight:700;color:var(--ink);letter-spacing:.02em}
h1{font-size:17px;margin:0 0 2px;overflow-wrap:anywhere}h2{font-size:18px;margin:26px 0 8px}
h4{margin:16px 0 4px;font-size:12px;text-transform:uppercase;letter-spacing:.06em;color:var(--soft)}
p{margin:4px 0}code{font:13px ui-monospace,SFMono-Regular,Menlo,monospace;overflow-wrap:anywhere}
.verdict{display:flex;gap:20px;align-items:center;background:var(--card);border:1px solid var(--line);
border-left:6px solid
var(--unknown);border-radius:10px;padding:16px 20px;margin-bottom:18px}
.verdict .word{font-size:26px;font-weight:700;color:var(--unknown);white-space:nowrap}
.verdict.healthy{border-left-color:var(--good)}.verdict.healthy .word{color:var(--good)}
.verdict.unhealthy{border-left-color:var(--bad)}.verdict.unhealthy .word{color:var(--bad)}
.facts,.numbers,figcaption,.for,.against{color:var(--soft);font-size:13px}
.finding{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 20px;margin:0 0 16px}
.finding h2{margin:0 0 4px;display:flex;align-items:center;gap:10px;flex-wrap:wrap}
.count{background:var(--ink);color:var(--card);border-radius:50%;width:24px;height:24px;font-size:13px;
display:inline-flex;
align-items:center;justify-content:center}
.pill{font-size:12px;font-weight:600;border-radius:20px;padding:1px 10px;border:1px solid currentColor;
white-space:nowrap}
.critical,.unhealthy{--tone:var(--bad)}.warning{--tone:var(--warn)}.info{--tone:var(--info)}
.healthy{--tone:var(--good)}.unknown{--tone:var(--unknown)}.pill{color:var(--tone)}
.where{display:flex;justify-content:space-between;gap:12px;flex-wrap:wrap}
.sure,.cause .head{display:flex;align-items:center;gap:8px;color:var(--soft);font-size:13px}
.cause .head b{color:var(--ink);font-size:15px;flex:1}
.gauge{display:inline-block;width:90px;height:7px;border-radius:4px;background:var(--line);overflow:hidden}
.gauge span{display:block;height:100%;background:var(--plot)}
ul,ol{margin:4px 0;padding-left:20px}li{margin:3px 0;overflow-wrap:anywhere}.causes{padding-left:0;list-style:none}
.cause{border-top:1px solid var(--line);padding:10px 0}.cause:first-child{border-top:0}
figure{margin:12px 0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 8px 4px}
figcaption{padding:0 6px 4px}.plot{width:100%;height:auto;display:block}
.grid{stroke:var(--line);stroke-width:1}.tick{fill:var(--soft);font:11px system-ui,sans-serif}
.line{fill:none;stroke:var(--plot);stroke-width:1.6;stroke-linejoin:round}.band{fill:var(--band);stroke:none}
.dot{fill:var(--plot)}.bad{fill:var(--shade)}.onset{stroke:var(--bad);stroke-width:1.4;stroke-dasharray:4 3}
.lost{stroke:var(--bad);stroke-width:1.6}.lostword{fill:var(--bad);font:600 12px system-ui,sans-serif}
table{border-collapse:collapse;width:100%;background:var(--card);border:1px solid var(--line);border-radius:10px;
margin-bottom:18px}
th,td{text-align:left;padding:8px 12px;border-top:1px solid var(--line);overflow-wrap:anywhere}
th{border-top:0;color:var(--soft);font-size:12px;text-transform:uppercase;letter-spacing:.05em}a{color:var(--info)}
.notes{color:var(--soft)}td:nth-child(2),td:nth-child(4){overflow-wrap:normal}
.run{margin-bottom:36px}
.plots{display:grid;grid-template-columns:1fr 1fr;gap:12px;align-items:start}.plots figure{margin:0}
@media (max-width:640px){.plots{grid-template-columns:1fr}.verdict{flex-direction:column;align-items:flex-start}}
@media print{body{background:#fff}.finding,figure{break-inside:avoid}}
"""
