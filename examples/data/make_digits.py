#!/usr/bin/python3
"""Draws handwritten-looking digits and writes them as MNIST IDX files: 1000 to train, 200 to test.

Each digit is a few strokes in the unit square. A drawing slants, stretches, turns, moves and bends
them a little, draws them with a pen of some width, and adds noise. The same files every time.
"""

import math
import pathlib
import random
import struct

SIDE = 28


def arc(cx, cy, rx, ry, begin, end, steps=10):
    """Points of an ellipse; angles in degrees, 0 to the right, 90 downwards."""
    angles = [math.radians(begin + (end - begin) * i / steps) for i in range(steps + 1)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


# Strokes of each digit; some are written in two ways.
SHAPES = [
    [[arc(0.5, 0.5, 0.27, 0.42, -90, 270, 20)], [arc(0.5, 0.5, 0.2, 0.42, -60, 300, 20)]],
    [[[(0.35, 0.25), (0.52, 0.08), (0.52, 0.92)]], [[(0.5, 0.08), (0.5, 0.92)]]],
    [[arc(0.5, 0.3, 0.25, 0.22, 190, 380) + [(0.25, 0.9), (0.78, 0.9)]],
     [arc(0.5, 0.28, 0.22, 0.2, 180, 410) + [(0.24, 0.88), (0.5, 0.84), (0.78, 0.92)]]],
    [[arc(0.47, 0.29, 0.24, 0.2, 200, 450) + arc(0.47, 0.7, 0.27, 0.21, -90, 160)]],
    [[[(0.6, 0.08), (0.22, 0.62), (0.82, 0.62)], [(0.63, 0.4), (0.63, 0.93)]],
     [[(0.3, 0.1), (0.25, 0.52), (0.72, 0.52)], [(0.7, 0.1), (0.66, 0.93)]]],
    [[[(0.74, 0.1), (0.33, 0.1), (0.3, 0.45)] + arc(0.47, 0.65, 0.26, 0.25, -125, 150)]],
    [[[(0.64, 0.08), (0.42, 0.32)] + arc(0.5, 0.68, 0.24, 0.23, 190, 550, 16)],
     [[(0.6, 0.06), (0.34, 0.4)] + arc(0.48, 0.7, 0.2, 0.2, 200, 540, 16)]],
    [[[(0.22, 0.12), (0.78, 0.12), (0.42, 0.92)]],
     [[(0.22, 0.14), (0.76, 0.1), (0.45, 0.92)], [(0.38, 0.5), (0.72, 0.48)]]],
    [[arc(0.5, 0.29, 0.2, 0.2, 90, 450, 16), arc(0.5, 0.7, 0.25, 0.21, -90, 270, 16)]],
    [[arc(0.5, 0.32, 0.23, 0.22, 0, 360, 16) + [(0.73, 0.34), (0.68, 0.92)]],
     [arc(0.5, 0.3, 0.22, 0.21, 0, 360, 16) + arc(0.46, 0.6, 0.27, 0.32, -30, 110, 8)]],
]


def distance(px, py, ax, ay, bx, by):
    dx, dy = bx - ax, by - ay
    length = dx * dx + dy * dy
    t = 0 if length == 0 else max(0, min(1, ((px - ax) * dx + (py - ay) * dy) / length))
    return math.hypot(px - ax - t * dx, py - ay - t * dy)


def draw(digit, rng):
    """784 pixels, 0 to 255."""
    strokes = rng.choice(SHAPES[digit])
    turn, slant = rng.gauss(0, 0.09), rng.gauss(0.08, 0.12)
    width, height = rng.uniform(0.78, 1.1), rng.uniform(0.85, 1.1)
    bend_x, bend_y = rng.gauss(0, 0.03), rng.gauss(0, 0.03)
    phase = rng.uniform(0, 2 * math.pi)
    move_x, move_y = rng.gauss(0, 0.9), rng.gauss(0, 0.9)
    pen, ink = rng.uniform(0.9, 1.6), rng.uniform(210, 255)

    def place(point):
        x, y = (point[0] - 0.5) * width, (point[1] - 0.5) * height
        x += bend_x * math.sin(6 * y + phase) + slant * -y
        y += bend_y * math.sin(6 * x + phase)
        x, y = (x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn))
        return x * 20 + SIDE / 2 + move_x, y * 20 + SIDE / 2 + move_y

    segments = []
    for stroke in strokes:
        points = [place(p) for p in stroke]
        segments += [(*a, *b) for a, b in zip(points, points[1:])]
    pixels = bytearray()
    for row in range(SIDE):
        for column in range(SIDE):
            near = min(distance(column + 0.5, row + 0.5, *s) for s in segments)
            value = ink * max(0.0, min(1.0, pen + 0.5 - near))
            if value > 0:
                value += rng.gauss(0, 12)
            pixels.append(int(max(0, min(255, value))))
    return bytes(pixels)


def write(folder, prefix, count, seed):
    rng = random.Random(seed)
    labels = [i % 10 for i in range(count)]
    rng.shuffle(labels)
    images = b"".join(draw(label, rng) for label in labels)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 0x803, count, SIDE, SIDE) + images)
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x801, count) + bytes(labels))


def main():
    folder = pathlib.Path(__file__).parent / "digits"
    folder.mkdir(exist_ok=True)
    write(folder, "train", 1000, 1)
    write(folder, "t10k", 200, 2)


if __name__ == "__main__":
    main()
