"""Ways to spoil an input: by its structure, such as a value of another type in JSON, and by its bytes."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import yaml

DEEP, HUGE = "@deep@", "@huge@"  # stand for what Python cannot write by itself: nesting, and a number of many digits
NAMES = (
    "",
    " ",
    "\0",
    "a\nb",
    "a\r\nb\x1b[31m",
    "\ud800",
    "\u202eabc",
    "<script>alert(1)</script>",
    "\"'`&<>|\\",
    "../../../outside",
    "/outside/absolute",
    "file:///outside",
    '=HYPERLINK("http://example.org")',
    "$\\LaTeX{}_%",
    "🦊" * 9,
    "x" * 10_000,
    "nan",
    "1e999",
    "-0",
    "None",
    "9" * 5000,
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**31, -(2**63), 2**64, 10**30, math.nan, math.inf, -math.inf, 1e308, HUGE, DEEP),
    *([], {}, [[]], {"a": {"b": []}}, [None], *NAMES),
)
YAML_PARTS = (
    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"
    "d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nseed: [*e,*e,*e,*e,*e,*e,*e,*e]\n",
    "a: &a {x: 1}\nb: &b {<<: [*a,*a,*a,*a,*a,*a,*a,*a,*a]}\nc: &c {<<: [*b,*b,*b,*b,*b,*b,*b,*b,*b]}\n"
    "d: &d {<<: [*c,*c,*c,*c,*c,*c,*c,*c,*c]}\ne: &e {<<: [*d,*d,*d,*d,*d,*d,*d,*d,*d]}\n"
    "f: &f {<<: [*e,*e,*e,*e,*e,*e,*e,*e,*e]}\ng: &g {<<: [*f,*f,*f,*f,*f,*f,*f,*f,*f]}\n",
    "seed: &r [*r]\n",
    'seed: !!python/object/apply:os.mkdir ["outside"]\n',
    "seed: 0x" + "f" * 9000 + "\n",
    "seed: 2020-99-99\n",
    "seed: 1:99:99:99.5\n",
    "? [a, b]\n: c\n",
    "? {a: 1}\n: c\n",
    "seed: !!binary '%%%'\n",
    "seed: !!set {a, b}\n",
    "\tseed: 1\n",
    "--- 1\n--- 2\n",
    "seed: " + "[" * 3000 + "\n",
    "%YAML 9.9\n---\nseed: 1\n",
)
XML_PARTS = (
    '<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>',
    '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///outside/secret">]>',
    "<!doctype a>",
    "<!ENTITY % a '&#37;b;'>",
    "&b;",
    "&#0;",
    "&#xd800;",
    "<![CDATA[<rdf:li>a</rdf:li>]]>",
    "<!-- -- -->",
    "<?xml version='1.0' encoding='utf-7'?>",
    "<?xml version='1.0' encoding='UTF-16'?>",
    "<?xml version='1.0' encoding='idna'?>",
    "<?xml version='1.0' encoding='cp037'?>",
    "<none:li/>",
    "<a none:b='c'/>",
    "<li xmlns='' xmlns:rdf=''/>",
    "<a>" * 3000,
    "<a>" * 3000 + "</a>" * 3000,
    "<a b='" + "c" * 20_000 + "'/>",
    "\ufeff",
)
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
Random = random.Random


def mutated(kind: str, corpus: Sequence[bytes], rng: Random) -> bytes:
    """One of the inputs after one to four changes, most of them by the structure that its kind has."""
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if kind in KINDS and rng.random() < 0.75:
            with suppress(Exception):  # what was spoilt before may be beyond a change by its structure
                data = KINDS[kind](data, rng)
                continue
        data = by_bytes(data, corpus, rng)
    return data


def by_bytes(data: bytes, corpus: Sequence[bytes], rng: Random) -> bytes:
    """A change that knows nothing of the format."""
    start, end = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
    end = min(end, start + rng.choice((1, 4, 64, 4096)))
    other = rng.choice(corpus)
    number = rng.choice(NUMBERS)
    size = rng.choice((1, 2, 4, 8))
    packed = (number % 256**size).to_bytes(size, rng.choice(("big", "little")))
    flipped = bytes(data[start] ^ (1 << rng.randrange(8)) for _ in range(1) if start < len(data))
    new = rng.choice(
        (
            data[:start] + flipped + data[start + 1 :],
            data[:start],
            data[start:],
            data[:start] + data[end:],
            data[:end] + data[start:],
            data[:start] + rng.randbytes(rng.choice((1, 2, 8, 64))) + data[end:],
            data[:start] + packed + data[start + size :],
            data[:start] + other[rng.randint(0, len(other)) :],
            data[:start] + rng.choice(NAMES).encode(errors="surrogatepass") + data[start:],
        )
    )
    return new[: 2**20]


def by_tree(value: Any, rng: Random) -> Any:
    """A tree of lists and dictionaries after one change somewhere in it."""
    places = list(_places(value))
    if not places or rng.random() < 0.03:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    change = rng.randrange(7)
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif change == 1:
        holder[str(rng.choice(NAMES))] = holder[key]
    elif change == 2:
        holder[key] = [holder[key]]
    elif change == 3:
        holder[key] = {"a": holder[key]}
    elif change == 4:
        other, place = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[place] if _has(other, place) else None))
    else:
        holder[key] = rng.choice(VALUES)
    return value


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(value: Any) -> Any:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, item in items:
            yield one, key
            waiting.append(item)


def dumped(value: Any, rng: Random) -> str:
    """A tree as JSON, with what stands for nesting and long numbers written out."""
    depth = rng.choice((100, 2000, 50_000))
    text = json.dumps(value, ensure_ascii=rng.random() < 0.8)
    return text.replace(f'"{DEEP}"', "[" * depth + "]" * depth).replace(f'"{HUGE}"', "9" * rng.choice((400, 5000)))


def _json(data: bytes, rng: Random) -> bytes:
    return dumped(by_tree(json.loads(data), rng), rng).encode(errors="surrogatepass")


def _json_lines(data: bytes, rng: Random) -> bytes:
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    choice = rng.randrange(6)
    if choice == 0:
        del lines[place]
    elif choice == 1:
        lines.insert(place, lines[place])
    else:
        lines[place] = _json(lines[place], rng)
    return b"\n".join(lines)


def _yaml(data: bytes, rng: Random) -> bytes:
    if b"[[[" in data or b"&" in data:
        raise ValueError  # read here without a limit, it would hold up this process and not the reader
    if rng.random() < 0.25:
        lines = data.decode().splitlines(keepends=True)
        lines.insert(rng.randint(0, len(lines)), rng.choice(YAML_PARTS))
        return "".join(lines).encode()
    value = by_tree(yaml.safe_load(data), rng)
    text = dumped(value, rng) if rng.random() < 0.5 else yaml.safe_dump(value, sort_keys=False)
    return text.encode(errors="surrogatepass")


def _xml(data: bytes, rng: Random) -> bytes:
    tokens = re.findall(r"<[^>]*>|[^<]+", data.decode())
    place, other = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    token = tokens[place]
    change = rng.randrange(7)
    if change == 0:
        del tokens[place]
    elif change == 1:
        tokens.insert(place, token)
    elif change == 2:
        tokens[place], tokens[other] = tokens[other], token
    elif change == 3:
        tokens.insert(place, rng.choice(XML_PARTS))
    elif change == 4:
        tokens[place] = re.sub(r"[\w:]+", lambda match: _word(match[0], rng), token)
    elif change == 5:
        tokens[place] = re.sub(r"=\"[^\"]*\"", f'="{rng.choice(NAMES)}"', token).replace("\\", "")
    else:
        tokens[place : place + 1] = [token, *tokens[min(place, other) : max(place, other)]]
    encoding = rng.choice(("utf-8",) * 8 + ("utf-16", "utf-16-le", "latin-1"))
    return "".join(tokens).encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace")


def _word(word: str, rng: Random) -> str:
    return (
        word if rng.random() < 0.6 else rng.choice(("a", "rdf:li", "rdf:RDF", "xmlns", "xmlns:rdf", "dc:subject", ":"))
    )


def _table(data: bytes, rng: Random) -> bytes:
    rows = list(csv.reader(io.StringIO(data.decode())))
    row = rng.choice(rows)
    change = rng.randrange(6)
    if change == 0:
        row.pop(rng.randrange(len(row)))
    elif change == 1:
        row.insert(rng.randint(0, len(row)), rng.choice(NAMES))
    elif change == 2:
        rows.remove(row)
    elif change == 3:
        rows.insert(rng.randint(0, len(rows)), list(row))
    else:
        row[rng.randrange(len(row))] = rng.choice(NAMES)
    out = io.StringIO()
    delimiter, end = rng.choice(",,,;\t|"), rng.choice(("\n", "\r\n"))
    writer = csv.writer(out, delimiter=delimiter, lineterminator=end)
    if rng.random() < 0.5:
        writer = csv.writer(out, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows(rows)
    encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"))
    return out.getvalue().encode(encoding, "surrogatepass")


def _text(data: bytes, rng: Random) -> bytes:
    parts = re.split(r"([,|:;=\s\"-])", data.decode())
    place = rng.randrange(len(parts))
    change = rng.randrange(5)
    if change == 0:
        del parts[place]
    elif change == 1:
        parts.insert(place, rng.choice((",", "|", ":", "=", '"', "-", *parts)))
    else:
        parts[place] = str(rng.choice(NAMES))
    return "".join(parts).encode(errors="surrogatepass")


def _zip(data: bytes, rng: Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as book:
        parts = {one: book.read(one) for one in book.namelist()}
    name = rng.choice(list(parts))
    change = rng.randrange(12)
    if change == 0:
        del parts[name]
    elif change == 1 and rng.random() < 0.1:
        parts[name] += b" " * 10**8  # compresses to a thousandth
    else:
        spoil = _xml if name.endswith((".xml", ".rels")) and change < 9 else by_any_bytes
        parts[name] = spoil(parts[name], rng)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as book:
        for one, content in parts.items():
            book.writestr(one, content)
    return out.getvalue()


def by_any_bytes(data: bytes, rng: Random) -> bytes:
    """A change that knows nothing of the format, nor of other inputs."""
    return by_bytes(data, [data], rng)


def _parquet(data: bytes, rng: Random) -> bytes:
    import pyarrow
    from pyarrow import parquet

    content = by_tree(parquet.read_table(io.BytesIO(data)).to_pydict(), rng)
    out = io.BytesIO()
    try:
        parquet.write_table(pyarrow.table(content), out)
    except Exception:  # what cannot be a table is spoilt in another way
        return by_any_bytes(data, rng)
    return out.getvalue()


def _safetensors(data: bytes, rng: Random) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    texts = header.get("__metadata__") or {}
    if isinstance(texts, dict) and texts and rng.random() < 0.4:
        name = rng.choice(list(texts))
        texts[name] = _json(str(texts[name]).encode(), rng).decode(errors="replace")
    else:
        header = by_tree(header, rng)
    text = dumped(header, rng).encode(errors="surrogatepass")
    said = rng.choice((len(text),) * 9 + (0, 10**8 - 1, 2**62))
    return struct.pack("<Q", said) + text + rest


def _request(data: bytes, rng: Random) -> bytes:
    head, _, body = data.partition(b"\n")
    if body:
        return head + b"\n" + _json(body, rng)
    route, mark, query = head.partition(b"?")  # another route is seldom one that there is
    if query:
        return route + mark + _text(query, rng).replace(b"\n", b"") + b"\n"
    return _text(head, rng).replace(b"\n", b"") + b"\n"


KINDS: dict[str, Callable[[bytes, Random], bytes]] = {
    "json": _json,
    "json lines": _json_lines,
    "yaml": _yaml,
    "xml": _xml,
    "table": _table,
    "text": _text,
    "zip": _zip,
    "parquet": _parquet,
    "safetensors": _safetensors,
    "request": _request,
}
