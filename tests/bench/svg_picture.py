"""What the bench's pictures share: colours, styles and the elements of an SVG. Imported by draw_timeline.py and draw_blocks.py.

Middle tones throughout, so that a picture is read on light and on dark pages; text stays text, in the reader's own fonts.
"""
import html

# One colour per owner, A first; white letters are read on each.
COLOURS = ["#3a78cf", "#bf6a1f", "#2b8a62", "#a8488a", "#7d63cc", "#c04f46", "#2a8696", "#857428",
           "#5b7fa6", "#9c6b4e", "#5f8a2f", "#c2507a", "#5a68b8", "#a5662f", "#3c8a86", "#8a6f8f"]

STYLE = """
    text { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 12px; fill: #6e7b8a; }
    .name { font-size: 15px; font-weight: 600; }
    .plain { font-size: 12px; font-weight: 400; }
    .strong { font-weight: 600; }
    .on { fill: #ffffff; text-anchor: middle; font-weight: 600; }
    .mid { text-anchor: middle; }
    .end { text-anchor: end; }
    .grid { stroke: #8a96a3; stroke-opacity: .28; }
    .axis { stroke: #8a96a3; stroke-opacity: .75; }
    .mark { stroke: #6e7b8a; stroke-width: 1.6; stroke-dasharray: 5 3; }
    .idle { fill: url(#hatch); stroke: #8a96a3; stroke-opacity: .45; }
    .free { fill: none; stroke: #8a96a3; stroke-opacity: .7; stroke-dasharray: 4 3; }
    .empty { fill: url(#hatch); fill-opacity: .6; }
    .shade { fill: #000000; fill-opacity: .34; }
    .sample { fill: #7b8794; }"""

HATCH = """
    <pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="7" height="7" fill="#8a96a3" fill-opacity=".10"/>
      <line x1="0" y1="0" x2="0" y2="7" stroke="#8a96a3" stroke-opacity=".6" stroke-width="2"/>
    </pattern>"""


def number(value):
    """A coordinate: two decimals at most, no needless zeros."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def letter(index):
    """A to Z, then A2 to Z2 and so on."""
    return chr(ord("A") + index % 26) + (str(index // 26 + 1) if index >= 26 else "")


def colour(index):
    return COLOURS[index % len(COLOURS)]


class Picture:
    """Collects elements; text() of it is the SVG."""

    def __init__(self, width, title):
        self.width, self.title, self.height = width, title, 0
        self.elements = []

    def add(self, element):
        self.elements.append("  " + element)

    def rect(self, x, y, width, height, kind="", fill="", radius=0, more=""):
        self.add(f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0))}" height="{number(max(height, 0))}"'
                 + (f' rx="{number(radius)}"' if radius else "") + (f' class="{kind}"' if kind else "")
                 + (f' fill="{fill}"' if fill else "") + (f" {more}" if more else "") + "/>")

    def line(self, x1, y1, x2, y2, kind):
        self.add(f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{kind}"/>')

    def words(self, x, y, text, kind="", after=""):
        """Text on one line; `after` follows it in the plain style."""
        rest = f'<tspan dx="14" class="plain">{html.escape(after, quote=False)}</tspan>' if after else ""
        self.add(f'<text x="{number(x)}" y="{number(y)}"' + (f' class="{kind}"' if kind else "")
                 + f">{html.escape(text, quote=False)}{rest}</text>")

    def text(self):
        size = f'viewBox="0 0 {number(self.width)} {number(self.height)}" width="{number(self.width)}" height="{number(self.height)}"'
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
            f'  <title id="title">{html.escape(self.title, quote=False)}</title>',
            f"  <style>{STYLE}\n  </style>",
            f"  <defs>{HATCH}\n  </defs>",
            *self.elements,
            "</svg>", ""])
