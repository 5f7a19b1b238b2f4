"""How the HTML report looks, in light and in dark."""

LIGHT = ("#1f6fd6", "#c2410c", "#15803d", "#9333ea", "#b91c6b", "#0e7490", "#854d0e", "#475569")
DARK = ("#6ab0ff", "#fb923c", "#4ade80", "#c084fc", "#f472b6", "#22d3ee", "#facc15", "#cbd5e1")


def _colours(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))


STYLE = (
    f":root{{color-scheme:light dark;--paper:#fff;--ink:#1c1c1e;--faint:#d8d8dc;{_colours(LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{--paper:#161618;--ink:#e8e8ea;--faint:#3a3a3e;{_colours(DARK)}}}}}"
    "body{font:15px/1.5 system-ui,sans-serif;background:var(--paper);color:var(--ink);max-width:1320px;"
    "margin:2rem auto;padding:0 1rem}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem}dt{opacity:.7}dd{margin:0}"
    "dd,li,h1{overflow-wrap:anywhere}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--faint);white-space:nowrap}"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:1.5rem}"
    "figure{margin:1rem 0}figcaption{font-weight:600}svg{width:100%;height:auto}"
    "svg text{font-size:12px;fill:var(--ink)}.grid{stroke:var(--faint)}.axis{stroke:var(--ink)}"
    ".line{fill:none;stroke:var(--c);stroke-width:2}.dot{fill:var(--c)}"
    ".legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:0;padding:0}"
    ".key{display:inline-block;width:.8em;height:.8em;margin-right:.4em;background:var(--c)}"
    + "".join(f".c{number}{{--c:var(--c{number})}}" for number in range(len(LIGHT)))
    + ".answer{--c:var(--c0)}.left{--c:var(--c7)}.failure{--c:var(--c1)}rect{fill:var(--c)}.waiting{opacity:.35}"
    "summary{cursor:pointer}"
)
