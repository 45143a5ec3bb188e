"""All readers of mlcil, and those of data sets, sidecars, images and options."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fuzz_child import Reader, Trial, Wrong
from fuzz_saved import SAVED
from fuzz_servers import SERVERS
from PIL import Image

from mlcil.cli.options import assignments
from mlcil.core.errors import UserError
from mlcil.data import class_lists, decoding
from mlcil.data.contents import Contents
from mlcil.data.protocol import session_classes
from mlcil.data.sources import read, resolve
from mlcil.data.xmp import read_keywords
from mlcil.data.xmp_writing import remove_tags, write_tags
from mlcil.experiments.grid import Grid
from mlcil.experiments.plan import file_runs, run_config
from mlcil.memory.buffer import Budget
from mlcil.serving.photo_lists import list_photos

ROWS = [["path", "labels", "split", "session"]]
ROWS += [[f"{n}.png", "cat;dog" if n % 2 else "", "test" if n > 4 else "train", "1"] for n in range(8)]
SIDECAR = """<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
 <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
   xmlns:digiKam="http://www.digikam.org/ns/1.0/" dc:format="image/jpeg">
  <dc:subject><rdf:Bag><rdf:li>cat</rdf:li><rdf:li>caf&#233; &amp; bar</rdf:li></rdf:Bag></dc:subject>
  <lr:hierarchicalSubject><rdf:Bag><rdf:li>Animals|Cat</rdf:li></rdf:Bag></lr:hierarchicalSubject>
  <digiKam:TagsList><rdf:Seq><rdf:li>Animals/Cat</rdf:li></rdf:Seq></digiKam:TagsList>
 </rdf:Description></rdf:RDF></x:xmpmeta>
"""
CONFIG = (
    "method: krt\ndata: digits\nprotocol: B0-C2\nseed: 3\nepochs: 2\nlr: 0.1\nbuffer: '20'\noptions:\n  width: 64\n"
)
GRID = (
    "settings: {data: digits, epochs: 2}\nruns:\n  first: {method: lwf}\n  second: {method: krt, options: {width: 9}}\n"
)


def picture(size: tuple[int, int] = (24, 16)) -> Image.Image:
    """A small picture."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8))


def encoded(form: str, mode: str = "RGB", **options: Any) -> bytes:
    """The small picture as a file."""
    out = io.BytesIO()
    picture().convert(mode).save(out, form, **options)
    return out.getvalue()


def in_file(name: str, seeds: Sequence[str | bytes], use: Callable[[Path], object]) -> Callable[[Path], Trial]:
    """A trial that writes each input to a file and reads that."""

    def make(folder: Path) -> Trial:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)

        def call(data: bytes) -> None:
            file.write_bytes(data)
            use(file)

        return Trial([one.encode() if isinstance(one, str) else one for one in seeds], call)

    return make


def of_text(seeds: Sequence[str], use: Callable[[str], object]) -> Callable[[Path], Trial]:
    """A trial whose inputs are options of a command line."""
    return lambda _: Trial(
        [one.encode() for one in seeds], lambda data: void(use(data.decode(errors="surrogateescape")))
    )


def void(_: object) -> None:
    """Nothing."""


def _coco(folder: Path) -> Trial:
    images = [{"id": n, "file_name": f"{n}.png"} for n in range(3)]
    marks = [{"image_id": n, "category_id": 7 + n % 2, "iscrowd": 0, "bbox": [1, 2, 3, 4]} for n in range(3)]
    content = json.dumps(
        {"images": images, "annotations": marks, "categories": [{"id": 7, "name": "a"}, {"id": 8, "name": "b"}]}
    )
    place = folder / "annotations"
    for part in ("train", "val"):
        (folder / f"{part}2014").mkdir(exist_ok=True)
    place.mkdir(exist_ok=True)
    (place / "instances_val2014.json").write_text(content)

    def call(data: bytes) -> None:
        (place / "instances_train2014.json").write_bytes(data)
        read(f"coco:{folder}")

    return Trial([content.encode()], call)


def _voc(folder: Path) -> Trial:
    place = folder / "ImageSets" / "Main"
    place.mkdir(parents=True, exist_ok=True)
    content = "a1 1\na2 -1\na3 0\n"
    for name in ("cat_trainval", "cat_test", "dog_test"):
        (place / f"{name}.txt").write_text(content)

    def call(data: bytes) -> None:
        (place / "dog_trainval.txt").write_bytes(data)
        read(f"voc:{folder}")

    return Trial([content.encode()], call)


def _table(name: str, seeds: Sequence[bytes]) -> Callable[[Path], Trial]:
    def make(folder: Path) -> Trial:
        for number in range(8):
            picture((8, 8 + number)).save(folder / f"{number}.png")
        file = folder / name
        count = 0

        def call(data: bytes) -> None:
            nonlocal count
            file.write_bytes(data)
            found = read(f"table:{file}")
            count += 1
            if count % 5 == 0:  # looking into files takes longer than all the rest
                resolve(found, Contents())

        return Trial(seeds, call)

    return make


def _as_csv() -> list[bytes]:
    columns = "file,cat,dog\n0.png,1,0\n1.png,,x\n"
    return ["".join(",".join(row) + "\n" for row in ROWS).encode(), columns.encode(), b"sep=;\npath;labels\n0.png;a\n"]


def _as_json_lines() -> list[bytes]:
    rows = [dict(zip(ROWS[0], row, strict=True)) | {"labels": ["cat"]} for row in ROWS[1:]]
    return ["\n".join(map(json.dumps, rows)).encode()]


def _as_excel() -> list[bytes]:
    import openpyxl

    book = openpyxl.Workbook()
    for row in ROWS:
        book.active.append(row)
    book.create_sheet("other").append([1.5, True, None])
    out = io.BytesIO()
    book.save(out)
    return [out.getvalue()]


def _as_parquet() -> list[bytes]:
    import pyarrow
    from pyarrow import parquet

    columns = {name: [row[place] for row in ROWS[1:]] for place, name in enumerate(ROWS[0])}
    files = []
    for made in (columns, {"path": columns["path"], "labels": [["cat"], []] * 4, "score": [1.5, None] * 4}):
        out = io.BytesIO()
        parquet.write_table(pyarrow.table(made), out)
        files.append(out.getvalue())
    return files


def _xmp_writing(folder: Path) -> Trial:
    photo = folder / "photo.jpg"
    photo.write_bytes(encoded("JPEG"))
    sidecar = folder / "photo.jpg.xmp"

    def call(data: bytes) -> None:
        sidecar.write_bytes(data)
        before = read_keywords(sidecar)
        write_tags(photo, ["fox", "a/b|c"])
        if not before | {"fox", "a/b|c"} <= read_keywords(sidecar):
            raise Wrong("a tag that was written, or one that was there, is gone")
        remove_tags(photo)
        if sidecar.exists() and read_keywords(sidecar) - before:
            raise Wrong("a tag that was taken away is still there")

    return Trial([SIDECAR.encode(), SIDECAR.replace("UTF-8", "UTF-16").replace("\n", "\r\n").encode("utf-16")], call)


def _tags(folder: Path) -> Trial:
    photo = folder / "photo.jpg"
    photo.write_bytes(encoded("JPEG"))

    def call(data: bytes) -> None:
        text = data.decode(errors="surrogateescape")
        write_tags(photo, [text, "fox"])
        if read_keywords(folder / "photo.jpg.xmp") != {text.strip(), "fox"}:
            raise Wrong("a sidecar says another tag than was written")
        remove_tags(photo)

    return Trial([b"cat", "caf\u00e9 & <bar>".encode(), b'"a|b"/c', b"]]>"], call)


def _images(folder: Path) -> Trial:
    from PIL import ImageCms

    turned = Image.Exif()
    turned[0x0112], turned[0x010E] = 6, "words"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    files = [
        encoded("JPEG", exif=turned.tobytes(), icc_profile=profile),
        encoded("JPEG", "CMYK", progressive=True),
        encoded("PNG", "RGBA", exif=turned.tobytes()),
        encoded("PNG", "P", transparency=3),
        encoded("GIF", "P", save_all=True, append_images=[picture()]),
        encoded("WEBP", exif=turned.tobytes()),
        encoded("BMP"),
        encoded("TIFF", "CMYK", compression="tiff_lzw", exif=turned),
        encoded("TIFF", "L"),
        encoded("AVIF"),
        encoded("MPO"),
        encoded("JPEG2000"),
        encoded("ICO"),
        encoded("TGA"),
        encoded("PCX"),
        encoded("PPM"),
        encoded("DDS"),
        encoded("SGI"),
        encoded("ICNS"),
        *_heif(),
    ]

    def call(data: bytes) -> None:
        uses: tuple[Callable[[], object], ...] = (
            lambda: decoding.inspect("photo.jpg", data),
            lambda: decoding.decode_content("photo.jpg", data, 16),
            lambda: decoding.content_to_fit("photo.jpg", data, 16),
        )
        for use in uses:
            try:
                use()
            except decoding.BadImage as error:
                last: UserError | None = error
            else:
                last = None
        if last is not None:
            raise last

    refused = encoded("EPS")  # a program, which Pillow has Ghostscript run

    def call_or_refuse(data: bytes) -> None:
        if data != refused:
            call(data)

    return Trial([*files, refused], call_or_refuse)


def _heif() -> list[bytes]:
    try:
        from pillow_heif import HeifFile
    except ImportError:
        return []
    file, out = HeifFile(), io.BytesIO()  # type: ignore[no-untyped-call]
    small = picture((64, 64))
    file.add_frombytes("RGB", small.size, small.tobytes())
    file.save(out, quality=50)
    return [out.getvalue()]


def _photo_lists(folder: Path) -> Trial:
    (folder / "a.jpg").write_bytes(encoded("JPEG"))
    (folder / "sub").mkdir(exist_ok=True)
    (folder / "sub" / "b.png").write_bytes(encoded("PNG"))

    def call(data: bytes) -> None:
        text = data.decode(errors="surrogateescape")
        found = list_photos(["-"], io.StringIO(text))
        for one in found[:3]:
            if "://" in one and not one.startswith("memory://"):
                continue  # it would be asked for over the network, as a list may name it
            facts = Contents().look([one])
            if not facts[0].problem and not one:
                raise Wrong("a photo without a name")
        if not found[0].startswith("/") and "://" not in found[0]:
            list_photos([f"{folder}/{found[0]}"])

    return Trial([b"a.jpg\nsub/b.png\n", b"**/*.png", b"sub", b"memory://a/b.jpg"], call)


def _named(folder: Path) -> Trial:
    """Data sets by the text that names them, in a folder that has some."""
    (folder / "table.csv").write_bytes(_as_csv()[0])
    (folder / "a.jpg").write_bytes(encoded("JPEG"))
    (folder / "a.jpg.xmp").write_text(SIDECAR)
    seeds = ["digits:train=4,test=2,size=16", f"table:{folder}/table.csv,labels=labels", f"folder:{folder},labels=xmp"]

    def read_here(text: str) -> None:
        place = os.path.abspath(text.partition(":")[2].partition(",")[0] or text)
        if place.startswith(str(folder)) or not os.path.isdir(place):  # another folder may be as large as it likes
            read(text)

    return of_text(seeds, read_here)(folder)


def _grid(file: Path) -> None:
    Grid(file_runs(file, [0, 1], {}), file.parent / "out")


def _parsed(text: str) -> None:
    classes = ("cat", "dog", "car", "bus")
    problems = []
    uses: tuple[Callable[[], object], ...] = (
        lambda: session_classes(classes, text),
        lambda: session_classes(classes, "B0-C2", text),
        lambda: class_lists.parse(text),
        lambda: Budget.parse(text),
        lambda: run_config(assignments([text])),
    )
    for use in uses:
        try:
            use()
        except UserError as error:
            problems.append(error)
    if len(problems) == len(uses):
        raise problems[0]


READERS = (
    Reader("COCO annotations", "json", 600, _coco),
    Reader("VOC lists", "text", 200, _voc),
    Reader("tables: CSV", "table", 900, _table("table.csv", _as_csv())),
    Reader("tables: JSON Lines", "json lines", 500, _table("table.jsonl", _as_json_lines())),
    Reader("tables: Excel", "zip", 400, _table("table.xlsx", _as_excel())),
    Reader("tables: Parquet", "parquet", 500, _table("table.parquet", _as_parquet())),
    Reader(
        "XMP reading",
        "xml",
        500,
        in_file("a.xmp", [SIDECAR, SIDECAR.replace("UTF-8", "UTF-16").encode("utf-16")], read_keywords),
    ),
    Reader("XMP writing", "xml", 600, _xmp_writing),
    Reader("XMP tags", "text", 200, _tags),
    Reader("configurations", "yaml", 600, in_file("config.yaml", [CONFIG], lambda file: run_config({}, file))),
    Reader("grids", "yaml", 300, in_file("grid.yaml", [GRID], _grid)),
    Reader(
        "data sets by name",
        "text",
        300,
        _named,
    ),
    Reader(
        "options",
        "text",
        400,
        of_text(["B0-C2", "cat,dog|car,bus", '"cat"|dog', "shuffle:7", "total:20", "lr=1e-3", "epochs=3"], _parsed),
    ),
    Reader("photo lists", "text", 200, _photo_lists),
    Reader("images", "bytes", 1200, _images),
    *SAVED,
    *SERVERS,
)
