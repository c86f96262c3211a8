"""Draws what `scripts/beside-gloo` has measured: a panel for each operation, time over size, both axes logarithmic.

    python3 scripts/beside_gloo_plot.py OUT.svg RECORD.csv...
"""

import csv
import math
import sys

#: What a panel takes, and the room around its axes: left, right, above, below.
WIDTH, HEIGHT, AROUND = 360, 250, (58, 14, 30, 34)
COLUMNS, LEGEND = 3, 30
COLORS = {"phalanx": "#e6194b", "gloo": "#4363d8"}
NAMES = {"phalanx": "phalanx", "gloo": "Gloo"}
#: Of the first number of ranks, the second, and so on.
DASHES = ("", "6 3", "2 3")


def read(paths):
    """Lines of each operation: {operation: {(ranks, library): [(bytes, microseconds)]}}. What has no size is left out."""
    operations = {}
    for path in paths:
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                if int(row["bytes"]) == 0:
                    continue
                lines = operations.setdefault(row["operation"], {})
                for library in NAMES:
                    line = lines.setdefault((int(row["ranks"]), library), [])
                    line.append((int(row["bytes"]), float(row[f"{library}_us"])))
    return operations


def text(x, y, words, anchor="middle", size=11):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def time_name(micros):
    return f"{micros:g} µs" if micros < 1000 else f"{micros / 1000:g} ms"


def panel(left, top, operation, lines, ranks, decades):
    sizes = sorted({size for line in lines.values() for size, _ in line})
    x0, x1 = left + AROUND[0], left + WIDTH - AROUND[1]
    y0, y1 = top + HEIGHT - AROUND[3], top + AROUND[2]

    def at(size, micros):
        x = (math.log(size) - math.log(sizes[0])) / (math.log(sizes[-1]) - math.log(sizes[0]))
        y = (math.log10(micros) - decades[0]) / (decades[1] - decades[0])
        return x0 + x * (x1 - x0), y0 + y * (y1 - y0)

    yield text((x0 + x1) / 2, top + 18, operation, size=13)
    for decade in range(decades[0], decades[1] + 1):
        _, y = at(sizes[0], 10.0**decade)
        yield f'<path d="M{x0} {y:.1f}H{x1}" stroke="#ddd"/>'
        yield text(x0 - 6, y + 4, time_name(10**decade), "end")
    for size in sizes:
        x, _ = at(size, 10.0 ** decades[0])
        yield f'<path d="M{x:.1f} {y0}V{y1}" stroke="#ddd"/>'
        yield text(x, y0 + 16, size_name(size))
    for (count, library), line in lines.items():
        points = [at(*point) for point in line]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        dashes = DASHES[ranks.index(count) % len(DASHES)]
        yield f'<path d="M{path}" fill="none" stroke="{COLORS[library]}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        for x, y in points:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{COLORS[library]}"/>'


def legend(ranks):
    for number, (count, library) in enumerate((count, library) for count in ranks for library in NAMES):
        x = 20 + 170 * number
        dashes = DASHES[ranks.index(count) % len(DASHES)]
        yield f'<path d="M{x} 16h28" stroke="{COLORS[library]}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        yield text(x + 34, 20, f"{NAMES[library]}, {count} ranks", "start", 12)


def picture(operations):
    ranks = sorted({count for lines in operations.values() for count, _ in lines})
    times = [micros for lines in operations.values() for line in lines.values() for _, micros in line]
    decades = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    width, height = COLUMNS * WIDTH, LEGEND + -(-len(operations) // COLUMNS) * HEIGHT
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif">'
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    yield from legend(ranks)
    for number, (operation, lines) in enumerate(operations.items()):
        left, top = number % COLUMNS * WIDTH, LEGEND + number // COLUMNS * HEIGHT
        yield from panel(left, top, operation, lines, ranks, decades)
    yield "</svg>"


def main(out, *records):
    with open(out, "w") as file:
        file.write("\n".join(picture(read(records))) + "\n")


main(*sys.argv[1:])
