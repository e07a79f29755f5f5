"""Draw the figures of docs as SVG: ``python docs/tools/figures.py``.

The pictures are text of a fixed size, so that the same program writes the same bytes.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "figures"
INK, GREY, PALE = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, LIGHT_BLUE, ORANGE, LIGHT_ORANGE, GREEN = "#2563a6", "#d6e6f7", "#c2570c", "#fde3cf", "#d9efdc"


class Drawing:
    """Shapes of an SVG with a white ground, which is readable on light and dark pages."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size, self._title, self._shapes = (width, height), title, list[str]()

    def box(self, x: float, y: float, w: float, h: float, fill: str = "none", line: str = GREY) -> None:
        """Add a rectangle."""
        self._shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" fill="{fill}" stroke="{line}"/>')

    def text(
        self, x: float, y: float, text: str, size: int = 12, at: str = "start", color: str = INK, bold: bool = False
    ) -> None:
        """Add a line of text; `at` is start, middle or end."""
        weight = ' font-weight="bold"' if bold else ""
        place = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}"'
        self._shapes.append(f'<text {place} fill="{color}"{weight}>{escape(text)}</text>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, color: str = GREY) -> None:
        """Add a line with a head at its end."""
        self._shapes.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        """Return the picture."""
        width, height = self._size
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0 0 L8 4 L0 8 z" fill="{GREY}"/></marker>'
        )
        start = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="Helvetica, Arial, sans-serif" role="img"><title>{escape(self._title)}</title>'
            f'<defs>{head}</defs><rect width="{width}" height="{height}" rx="6" fill="#ffffff"/>'
        )
        return "\n".join([start, *self._shapes, "</svg>"]) + "\n"


def subwarps() -> str:
    """Return the threads of a warp in the product of short sparse rows: two rows of 64 columns, 16 threads each."""
    picture = Drawing(720, 262, "Two rows share a warp: 16 threads a row, four columns a thread")
    picture.text(20, 28, "One warp, two rows of A H with 64 columns (spmm/rows.cu)", 15, bold=True)
    for row, (name, fill, entries) in enumerate((("row r", LIGHT_BLUE, 3), ("row r + 1", LIGHT_ORANGE, 2))):
        y = 62 + 96 * row
        picture.text(20, y + 20, name, 13)
        for lane in range(16):
            x = 96 + 38 * lane
            picture.box(x, y, 38, 30, fill)
            picture.text(x + 19, y + 19, str(lane + 16 * row), 11, "middle")
            if lane in (0, 1, 15):
                picture.text(x + 19, y + 45, f"{4 * lane}–{4 * lane + 3}", 10, "middle", GREY)
        picture.text(390, y + 45, "columns of the thread: one float4", 10, "middle", GREY)
        picture.text(96, y + 62, f"{entries} entries: every thread loads", 11)
        for entry in range(entries):
            picture.box(276 + 128 * entry, y + 50, 120, 17, fill)
            picture.text(336 + 128 * entry, y + 62, f"index, weight, H[{'abc'[entry]}]", 10, "middle")
    text = "Up to five entries of a row are in flight at once. No thread reads another's sum, so there is no barrier."
    picture.text(20, 250, text, 12)
    return picture.svg()


def fused_step() -> str:
    """Return the six kernels of a fused step of two layers, and what each hands to the next."""
    picture = Drawing(720, 338, "The six kernels of a fused training step")
    picture.text(20, 28, "A training step of two layers: six kernels (fused/narrow/step.cu)", 15, bold=True)
    kernels = (
        ("forward_first", "Y1 = U1 W1'", LIGHT_BLUE, "moments of Y1"),
        ("forward", "U2 = A relu(norm(Y1)), Y2 = U2 W2'", LIGHT_BLUE, "moments of Y2"),
        ("readout", "nodes to graphs, outputs, loss, back to G2", GREEN, "sums of G2"),
        ("backward", "dY2; G1 through Aᵀ and W2ᵀ; U2ᵀ dY2", LIGHT_ORANGE, "sums of G1"),
        ("backward_first", "U1ᵀ dY1", LIGHT_ORANGE, "partial sums of dW"),
        ("update", "reduce, Adam, copy the next batch", PALE, "parameters, batch"),
    )
    for number, (name, work, fill, result) in enumerate(kernels):
        y = 48 + 45 * number
        picture.box(20, y, 480, 31, fill)
        picture.text(32, y + 20, name, 12, bold=True)
        picture.text(150, y + 20, work, 12)
        picture.arrow(500, y + 16, 540, y + 16)
        picture.text(548, y + 20, result, 11, color=GREY)
        if number < len(kernels) - 1:
            picture.arrow(260, y + 31, 260, y + 45)
    text = "A kernel ends only where the next one needs sums over all graphs, such as the statistics of batch norm."
    picture.text(20, 324, text, 12)
    return picture.svg()


def cohort() -> str:
    """Return the grid of a launch of a cohort: the member is the third dimension."""
    picture = Drawing(720, 282, "A cohort: the member is the grid's third dimension")
    picture.text(20, 28, "One launch trains a cohort: the member is the third dimension of the grid", 15, bold=True)
    for member, name in ((3, "member K - 1"), (2, "…"), (1, "member 1"), (0, "member 0")):
        x, y = 40 + 34 * member, 132 - 24 * member
        picture.box(x, y, 300, 84, "#ffffff")
        for tile in range(6):
            picture.box(x + 12 + 46 * tile, y + 30, 38, 40, LIGHT_BLUE)
            picture.text(x + 31 + 46 * tile, y + 54, "16 rows", 8, "middle", GREY)
        picture.text(x + 12, y + 20, name, 11, bold=True)
    picture.text(40, 238, "blocks: tiles of 16 rows of the batch", 11, color=GREY)
    picture.box(500, 62, 200, 42, GREEN)
    picture.text(600, 80, "shared: data set,", 12, "middle")
    picture.text(600, 96, "U of the first layer", 12, "middle")
    for member in range(4):
        picture.box(500, 124 + 24 * member, 200, 24, LIGHT_ORANGE)
        name = ("0", "1", "…", "K - 1")[member]
        picture.text(600, 140 + 24 * member, f"region of {name}: weights, batch, sums", 10, "middle")
    picture.text(600, 238, "one block of memory", 11, "middle", GREY)
    picture.arrow(446, 92, 494, 84)
    picture.arrow(446, 120, 494, 170)
    text = "Up to 64 models of one architecture. Each has the bits that it has alone."
    picture.text(20, 268, text, 12)
    return picture.svg()


def rooms() -> dict[str, list[str]]:
    """Return the rooms and those that their arrows lead to, from the page on the architecture."""
    page = (FOLDER.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.*?) ?\|$", page, flags=re.MULTILINE)
    return {room: re.findall(r"\w+", arrows) for room, arrows in rows}


def architecture() -> str:
    """Return the rooms in floors: each as high as the rooms that stand on it let it be."""
    arrows = rooms()
    users = {room: [user for user, below in arrows.items() if room in below] for room in arrows}
    floors: dict[str, int] = {}
    while len(floors) < len(arrows):
        for room, above in users.items():
            if all(user in floors for user in above):
                floors[room] = max((floors[user] + 1 for user in above), default=0)
    middle: dict[str, float] = {}  # x: below the rooms that stand on it, as far as its neighbours leave place
    for floor in range(max(floors.values()) + 1):
        here = [room for room in arrows if floors[room] == floor]
        wanted = {room: sum(middle[user] for user in users[room]) / max(1, len(users[room])) for room in here}
        here.sort(key=lambda room: wanted[room])
        centre = sum(wanted.values()) / len(here)
        middle |= {room: centre + 164 * (at - (len(here) - 1) / 2) for at, room in enumerate(here)}
    shift = 360 - (min(middle.values()) + max(middle.values())) / 2
    picture = Drawing(720, 46 + 56 * (max(floors.values()) + 1), "The rooms of the package and what they stand on")
    picture.text(20, 26, "A room imports the rooms that its arrows lead to, directly or through others", 13, bold=True)
    for room, below in arrows.items():
        for other in below:
            ends = (middle[room] + shift, 78 + 56 * floors[room], middle[other] + shift, 45 + 56 * floors[other])
            picture.arrow(*ends)
    for room in arrows:
        x, y = middle[room] + shift, 46 + 56 * floors[room]
        picture.box(x - 66, y, 132, 32, LIGHT_BLUE)
        picture.text(x, y + 21, room, 13, "middle")
    return picture.svg()


FIGURES = {
    "architecture.svg": architecture,
    "subwarps.svg": subwarps,
    "fused_step.svg": fused_step,
    "cohort.svg": cohort,
}


def main() -> None:
    """Write all figures."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in FIGURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
