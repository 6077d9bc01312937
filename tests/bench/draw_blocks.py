#!/usr/bin/env python3
"""Draws who owns which block of a small pool, one panel per way of handing blocks out, with how many conversations fit.

    draw_blocks.py PANEL.json [PANEL.json ...] -o PICTURE.svg [--columns 8]

A panel is {"title": "...", "blocks": [{"owner": "A", "filled": 16}, {"owner": null, "filled": 0}, ...], "conversations": 4}. `filled`
is the number of the block's positions in use, of "block_tokens" (16 if not given). A block of several owners, a shared prefix, names
them all: "owner": ["A", "B"]. Colours go by the owners' names in alphabetic order, the same in all panels.
"""
import argparse
import json
import sys

from svg_picture import Picture, colour

CELL = 46
CELL_GAP = 6
PANEL_GAP = 56
MARGIN = 16


def owners_of(block):
    owner = block.get("owner")
    return [] if owner is None else sorted(owner) if isinstance(owner, list) else [str(owner)]


def read_panel(path):
    with open(path, encoding="utf-8") as file:
        panel = json.load(file)
    panel.setdefault("block_tokens", 16)
    for i, block in enumerate(panel["blocks"]):
        if not 0 <= block["filled"] <= panel["block_tokens"]:
            sys.exit(f"{path}: block {i} has {block['filled']} positions filled of {panel['block_tokens']}")
        if block["filled"] and not owners_of(block):
            sys.exit(f"{path}: block {i} is filled and has no owner")
    return panel


def draw_block(picture, block, block_tokens, x, y, colours):
    """Filled positions rise from the bottom; what is reserved and empty is hatched in the owner's tint."""
    owners = owners_of(block)
    if not owners:
        picture.rect(x + 0.5, y + 0.5, CELL - 1, CELL - 1, "free", radius=4)
        return
    share = block["filled"] / block_tokens
    part = CELL / len(owners)
    height = CELL * share
    for i, owner in enumerate(owners):
        left = x + i * part
        picture.rect(left, y, part, CELL, fill=colours[owner], more='fill-opacity=".28"')
        picture.rect(left, y + CELL - height, part, height, fill=colours[owner])
    if share < 1:
        picture.rect(x, y, CELL, CELL - height, "empty")
    picture.rect(x + 0.75, y + 0.75, CELL - 1.5, CELL - 1.5, fill="none", more=f'stroke="{colours[owners[0]]}" stroke-width="1.5"')
    words = "".join(owners) if len(owners) <= 3 else f"{len(owners)} ×"
    if height >= 20:
        picture.words(x + CELL / 2, y + CELL - height / 2 + 5, words, "on")
    else:
        picture.words(x + CELL / 2, y + (CELL - height) / 2 + 5, words, "mid strong")


def draw_panel(picture, panel, left, columns, colours):
    blocks, block_tokens = panel["blocks"], panel["block_tokens"]
    picture.words(left, 22, panel["title"], "name")
    top = 38
    for i, block in enumerate(blocks):
        draw_block(picture, block, block_tokens, left + i % columns * (CELL + CELL_GAP),
                   top + i // columns * (CELL + CELL_GAP), colours)
    y = top + (len(blocks) + columns - 1) // columns * (CELL + CELL_GAP) + 20
    owned = [b for b in blocks if owners_of(b)]
    held = len(owned) * block_tokens
    empty = held - sum(b["filled"] for b in owned)
    free = len(blocks) - len(owned)
    count = panel["conversations"]
    picture.words(left, y, "1 conversation fits" if count == 1 else f"{count} conversations fit", "name")
    picture.words(left, y + 20, f"{100 * empty / max(held, 1):.0f}% of what they hold is empty; "
                  + ("no block is free" if free == 0 else "1 block is free" if free == 1 else f"{free} blocks are free"))
    y += 20
    return y


def draw_legend(picture, y):
    items = (("used", "positions in use"), ("reserved", "held, still empty"), ("free", "free block"))
    x = MARGIN
    for kind, words in items:
        if kind == "free":
            picture.rect(x + 0.5, y + 0.5, 17, 17, "free", radius=3)
        else:
            picture.rect(x, y, 18, 18, "sample" if kind == "used" else "empty")
        picture.words(x + 26, y + 13, words)
        x += 150


def draw(panels, columns):
    names = sorted({owner for panel in panels for block in panel["blocks"] for owner in owners_of(block)})
    colours = {name: colour(i) for i, name in enumerate(names)}
    panel_width = columns * (CELL + CELL_GAP) - CELL_GAP
    width = 2 * MARGIN + len(panels) * panel_width + (len(panels) - 1) * PANEL_GAP
    picture = Picture(width, "The blocks of a pool and who owns them: " + "; ".join(
        f"{p['title']}: {p['conversations']} conversations fit" for p in panels))
    bottom = max(draw_panel(picture, panel, MARGIN + i * (panel_width + PANEL_GAP), columns, colours)
                 for i, panel in enumerate(panels))
    draw_legend(picture, bottom + 20)
    picture.height = bottom + 50
    return picture.text()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("panels", nargs="+", metavar="PANEL.json")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--columns", type=int, default=8, help="blocks in a row")
    options = parser.parse_args()
    panels = [read_panel(path) for path in options.panels]
    with open(options.output, "w", encoding="utf-8") as file:
        file.write(draw(panels, max(options.columns, 1)))


if __name__ == "__main__":
    main()
