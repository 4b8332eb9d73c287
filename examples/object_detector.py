"""Finds the parts of a page (title, text, figure, table) and draws boxes around them.

Draws a page, compiles PP-PicoDet for page layouts, decodes its boxes, keeps the best of those that
overlap, compares the boxes with ONNX Runtime's, and checks them against what was drawn.

    python examples/object_detector.py
"""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fetch_model import FILES, FetchError, fetch_file

import tvm_ext
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.hardware.timing import interleaved_milliseconds

try:
    from PIL import Image, ImageDraw, ImageFont
except ImportError:
    print(
        "error: Pillow is not installed; expected it for drawing: pip install pillow",
        file=sys.stderr,
    )
    sys.exit(2)

HEIGHT, WIDTH = 800, 608
# In the order of the model's scores.
LABELS = (
    *("text", "title", "figure", "figure_caption", "table"),
    *("table_caption", "header", "footer", "reference", "equation"),
)
COLOURS = {"text": "#1f77b4", "title": "#d62728", "table": "#2ca02c", "figure": "#9467bd"}
STRIDES = (8, 16, 32, 64)
MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
LEAST_SCORE = 0.4
MOST_OVERLAP = 0.5
SENTENCE = (
    "A compiler reads a model, joins its operators into kernels, plans their memory and writes a "
    "program that computes the same numbers in less time. "
)


@dataclass(frozen=True)
class Detection:
    """A part of the page; the box is left, top, right, bottom in pixels of the model's input."""

    label: str
    score: float
    box: np.ndarray


def paragraph(draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], size: int) -> None:
    """Fills a box with lines of text."""
    font = ImageFont.load_default(size)
    left, top, right, bottom = box
    words, line, y = (SENTENCE * 30).split(), "", top
    for word in words:
        if draw.textlength(f"{line} {word}", font=font) <= right - left:
            line = f"{line} {word}".strip()
            continue
        draw.text((left, y), line, "black", font)
        line, y = word, y + int(1.4 * size)
        if y + size > bottom:
            return


def table(draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], rows: int) -> None:
    """Draws a table of four columns with figures in it."""
    left, top, right, bottom = box
    height, width, font = (bottom - top) / rows, (right - left) / 4, ImageFont.load_default(20)
    for row in range(rows + 1):
        draw.line((left, top + row * height, right, top + row * height), "black", 2)
    for column in range(5):
        draw.line((left + column * width, top, left + column * width, bottom), "black", 2)
    heads = ("Kernel", "Calls", "Time", "Share")
    for row in range(rows):
        for column in range(4):
            text = heads[column] if row == 0 else f"{(7 * row + 3 * column) ** 2 % 97}.{row}"
            draw.text((left + column * width + 12, top + row * height + 8), text, "black", font)


def draw_page() -> tuple[Image.Image, dict[str, list[tuple[int, int, int, int]]]]:
    """A page at twice the size of the input, and the boxes of what was drawn, by label."""
    page = Image.new("RGB", (2 * WIDTH, 2 * HEIGHT), "white")
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(58)
    draw.text((160, 90), "Compiling a Model in Four Steps", "black", font, stroke_width=2)
    texts = [(120, 240, 1100, 760), (120, 1290, 1100, 1500)]
    for box in texts:
        paragraph(draw, box, 24)
    drawn = {"title": [(160, 90, 1060, 160)], "text": texts, "table": [(160, 860, 1050, 1180)]}
    table(draw, drawn["table"][0], rows=7)
    return page, drawn


def to_input(page: Image.Image) -> np.ndarray:
    """The page as the network wants it: float32[1, 3, 800, 608], normalised as ImageNet is."""
    pixels = np.asarray(page.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)) / 255.0
    return ((pixels - MEAN) / DEVIATION).transpose(2, 0, 1)[None].astype("float32")


def decode(outputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Scores [N, 10] and boxes [N, 4] of all places of the four feature maps.

    Each side of a box is given by how likely each of eight distances from the place is; the
    distance is their mean, in steps of the map's stride.
    """
    arrays, scores, boxes = list(outputs.values()), [], []
    for stride, score, sides in zip(STRIDES, arrays[:4], arrays[4:], strict=True):
        rows, columns = -(-HEIGHT // stride), -(-WIDTH // stride)
        y, x = np.mgrid[:rows, :columns].reshape(2, -1, 1) * stride + stride / 2
        likely = np.exp(sides[0].reshape(-1, 4, 8))
        likely /= likely.sum(-1, keepdims=True)
        left, top, right, bottom = np.split(likely @ np.arange(8) * stride, 4, axis=1)
        boxes.append(np.hstack([x - left, y - top, x + right, y + bottom]))
        scores.append(score[0])
    return np.concatenate(scores), np.concatenate(boxes)


def overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with each of the others."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = sides.clip(0).prod(1)
    return common / ((box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(1) - common)


def detect(outputs: Mapping[str, np.ndarray]) -> list[Detection]:
    """What the network found: of boxes that overlap, of one label, the one with the best score."""
    scores, boxes = decode(outputs)
    found = []
    for number, label in enumerate(LABELS):
        order = np.argsort(-scores[:, number])
        order = order[scores[order, number] > LEAST_SCORE]
        while order.size:
            best, rest = order[0], order[1:]
            found.append(Detection(label, float(scores[best, number]), boxes[best]))
            order = rest[overlap(boxes[best], boxes[rest]) <= MOST_OVERLAP]
    return found


def draw_boxes(page: Image.Image, found: list[Detection], path: Path) -> None:
    """Writes the page with a box and a label for each detection."""
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(24)
    for detection in found:
        box = [2 * float(side) for side in detection.box]
        colour = COLOURS.get(detection.label, "#ff7f0e")
        draw.rectangle(box, outline=colour, width=5)
        draw.text((box[0], box[1] - 30), f"{detection.label} {detection.score:.2f}", colour, font)
    page.save(path)


def all_found(found: list[Detection], drawn: Mapping[str, list[tuple[int, int, int, int]]]) -> bool:
    """Whether each thing on the page has a detection of its label that overlaps by half or more."""
    missing = [
        (label, box)
        for label, wanted in drawn.items()
        for box in wanted
        if not any(
            one.label == label and overlap(2 * one.box, np.array([box]))[0] >= 0.5 for one in found
        )
    ]
    for label, box in missing:
        print(f"not found: the {label} at {box}")
    return not missing


def main() -> int:
    """Runs the example; 0 when both programs find all that was drawn, in the same places."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    folder = parser.parse_args().folder
    name = "layout_cdla.onnx"
    try:
        path = fetch_file(name, folder)
    except FetchError as error:
        print(f"error: the model cannot be had: {error}", file=sys.stderr)
        return 2
    print(f"model: {FILES[name].description} (licence {FILES[name].licence})")

    page, drawn = draw_page()
    inputs = {"image": to_input(page)}
    model = tvm_ext.compile(path)
    found = detect(model.run(inputs))
    session = ReferenceSession(path, threads=int(model.report.target["cores"]))
    wanted = detect(session.run(inputs))
    for one in found:
        left, top, right, bottom = (2 * one.box).round().astype(int)
        print(f"  {one.label:8s} {one.score:.2f}  from ({left}, {top}) to ({right}, {bottom})")
    picture = folder / "page_with_boxes.png"
    draw_boxes(page, found, picture)
    print(f"wrote {picture}")

    ours, theirs = interleaved_milliseconds(lambda: model.run(inputs), lambda: session.run(inputs))
    print(f"time of a page, median: tvm-ext {ours:.1f} ms, ONNX Runtime {theirs:.1f} ms")
    same = [one.label for one in found] == [one.label for one in wanted] and all(
        np.abs(one.box - other.box).max() < 0.5 for one, other in zip(found, wanted, strict=True)
    )
    print(f"boxes of ONNX Runtime: {'the same' if same else 'OTHERS'}, to half a pixel")
    passed = all_found(found, drawn) and same
    print("check passed: all that was drawn was found" if passed else "check FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
