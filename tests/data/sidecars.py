"""Sidecars as photo tools write them, and a strategy for others that they might write."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from xml.sax.saxutils import escape

from hypothesis import strategies as st

RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"

# One description with most values as attributes, padded for changes in place; keywords with levels.
LIGHTROOM = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="Adobe XMP Core 7.0-c000 1.000000, 0000/00/00-00:00:00        ">
 <rdf:RDF xmlns:rdf="{RDF}">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:crs="http://ns.adobe.com/camera-raw-settings/1.0/"
    xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
    xmlns:xmpMM="http://ns.adobe.com/xap/1.0/mm/"
    xmlns:stEvt="http://ns.adobe.com/xap/1.0/sType/ResourceEvent#"
   xmp:Rating="4"
   crs:Exposure2012="+0.35"
   crs:HasSettings="True">
   <dc:subject>
    <rdf:Bag>
     <rdf:li>Animals</rdf:li>
     <rdf:li>cat</rdf:li>
    </rdf:Bag>
   </dc:subject>
   <lr:hierarchicalSubject>
    <rdf:Bag>
     <rdf:li>Animals|cat</rdf:li>
    </rdf:Bag>
   </lr:hierarchicalSubject>
   <xmpMM:History>
    <rdf:Seq>
     <rdf:li
      stEvt:action="saved"
      stEvt:changed="/metadata"/>
    </rdf:Seq>
   </xmpMM:History>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
{" " * 100}
<?xpacket end="w"?>"""

# Written by Exiv2: no packet around it, the history of edits, one list of keywords that its user left empty.
DARKTABLE = f"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="{RDF}">
  <rdf:Description rdf:about=""
    xmlns:xmp="http://ns.adobe.com/xap/1.0/"
    xmlns:darktable="http://darktable.sf.net/"
    xmlns:dc="http://purl.org/dc/elements/1.1/"
    xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
   xmp:Rating="1"
   darktable:xmp_version="5"
   darktable:auto_presets_applied="1">
   <darktable:history>
    <rdf:Seq>
     <rdf:li
      darktable:num="0"
      darktable:operation="sharpen"
      darktable:params="000000400000003f0000003f"/>
    </rdf:Seq>
   </darktable:history>
   <dc:subject>
    <rdf:Bag/>
   </dc:subject>
   <lr:hierarchicalSubject>
    <rdf:Bag>
     <rdf:li>darktable|format|jpg</rdf:li>
    </rdf:Bag>
   </lr:hierarchicalSubject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""

# The same keywords in several namespaces, the paths as an ordered list, a title in languages.
DIGIKAM = f"""<?xml version="1.0" encoding="UTF-8"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="XMP Core 4.4.0-Exiv2">
 <rdf:RDF xmlns:rdf="{RDF}">
  <rdf:Description rdf:about=""
    xmlns:digiKam="http://www.digikam.org/ns/1.0/"
    xmlns:MicrosoftPhoto="http://ns.microsoft.com/photo/1.0/"
    xmlns:lr="http://ns.adobe.com/lightroom/1.0/"
    xmlns:dc="http://purl.org/dc/elements/1.1/"
   digiKam:PickLabel="0">
   <digiKam:TagsList>
    <rdf:Seq>
     <rdf:li>Orte/K\xf6ln</rdf:li>
    </rdf:Seq>
   </digiKam:TagsList>
   <MicrosoftPhoto:LastKeywordXMP>
    <rdf:Bag>
     <rdf:li>Orte/K\xf6ln</rdf:li>
    </rdf:Bag>
   </MicrosoftPhoto:LastKeywordXMP>
   <lr:hierarchicalSubject>
    <rdf:Bag>
     <rdf:li>Orte|K\xf6ln</rdf:li>
    </rdf:Bag>
   </lr:hierarchicalSubject>
   <dc:subject>
    <rdf:Bag>
     <rdf:li>K\xf6ln</rdf:li>
    </rdf:Bag>
   </dc:subject>
   <dc:title>
    <rdf:Alt>
     <rdf:li xml:lang="x-default">Dom &amp; Br\xfccke</rdf:li>
    </rdf:Alt>
   </dc:title>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
"""

LETTERS = st.characters(blacklist_categories=("Cc", "Cs"), blacklist_characters="\ufffe\uffff")
WORDS = st.sampled_from(
    ["cat", "dog", "traffic light", "a|b", "a/b", "b", "K\xfche", "R&D", "<b>", "'\"", "]]>", "mlcil"]
)
TAGS = (WORDS | st.text(LETTERS, min_size=1, max_size=6)).filter(str.strip)
KEYWORDS = (TAGS | st.sampled_from(["", " cat ", "Animals|cat", "Orte/K\xf6ln"])).filter(
    lambda text: not text.strip().startswith(("mlcil|", "mlcil/"))
)
LISTS = {
    "dc": ("http://purl.org/dc/elements/1.1/", "subject"),
    "lr": ("http://ns.adobe.com/lightroom/1.0/", "hierarchicalSubject"),
    "digiKam": ("http://www.digikam.org/ns/1.0/", "TagsList"),
}
OTHERS = [  # R stands for the prefix of RDF
    '<t:title xmlns:t="http://purl.org/dc/elements/1.1/"><R:Alt><R:li xml:lang="de">Titel</R:li></R:Alt></t:title>',
    '<odd:thing xmlns:odd="urn:odd" xmlns:mlcil="urn:other"><!-- mine --><mlcil:added/>&#13;&#x41;</odd:thing>',
    '<m:Pantry xmlns:m="urn:mm" xmlns:d="http://purl.org/dc/elements/1.1/"><R:Bag><R:li><R:Description>'
    "<d:subject><R:Bag><R:li>inner</R:li></R:Bag></d:subject></R:Description></R:li></R:Bag></m:Pantry>",
    "<plain>text <![CDATA[<rdf:RDF> & more]]></plain>",
    "<?note keep?>",
]


@dataclass(frozen=True)
class Sidecar:
    """A sidecar in some encoding."""

    content: bytes
    encoding: str


@st.composite
def sidecars(draw: st.DrawFn) -> Sidecar:
    """Any sidecar without tags of ours: lists there or not, of any kind, in any description, with any prefix."""
    rdf = draw(st.sampled_from(["rdf", "r", "dc"]))
    space = draw(st.sampled_from(["", " ", "\n", "\n  ", "\r\n\t", "\n\n "]))
    about = draw(st.sampled_from(["", "", "uuid:1&amp;2"]))
    bodies: list[list[str]] = [[] for _ in range(draw(st.integers(0, 3)))]
    if bodies:
        for name in LISTS:
            if draw(st.booleans()):
                bodies[draw(st.integers(0, len(bodies) - 1))].append(draw(_list(name, rdf, space)))
        for other in draw(st.lists(st.sampled_from(OTHERS), max_size=3)):
            bodies[draw(st.integers(0, len(bodies) - 1))].insert(0, other.replace("R:", f"{rdf}:"))
    descriptions = [_description(body, rdf, space, about, draw(st.booleans())) for body in bodies]
    text = f'<{rdf}:RDF xmlns:{rdf}="{RDF}"' + (
        f">{''.join(space + description for description in descriptions)}{space}</{rdf}:RDF>"
        if descriptions or draw(st.booleans())
        else "/>"
    )
    return draw(_wrapped(text, space))


@st.composite
def _list(draw: st.DrawFn, name: str, rdf: str, space: str) -> str:
    namespace, local = LISTS[name]
    prefix = draw(st.sampled_from(sorted({name, "lightroom", "mlcil"} - {rdf})))
    kind = f"{rdf}:{draw(st.sampled_from(['Bag', 'Seq', 'Alt']))}"
    items = draw(st.lists(KEYWORDS, max_size=3))
    inside = "".join(f"{space}<{rdf}:li>{escape(text)}</{rdf}:li>" for text in items)
    closed = f"<{kind}/>" if not items and draw(st.booleans()) else f"<{kind}>{inside}{space}</{kind}>"
    return f'<{prefix}:{local} xmlns:{prefix}="{namespace}">{space}{closed}</{prefix}:{local}>'


def _description(body: list[str], rdf: str, space: str, about: str, shorthand: bool) -> str:
    rating = " xmlns:xmp='http://ns.adobe.com/xap/1.0/'\n   xmp:Rating='3>'" if shorthand else ""
    head = f'<{rdf}:Description {rdf}:about="{about}"{rating}'
    return f"{head}>{space.join(['', *body])}{space}</{rdf}:Description>" if body else f"{head}/>"


@st.composite
def _wrapped(draw: st.DrawFn, text: str, space: str) -> Sidecar:
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-16-le", "utf-16-be", "latin-1", "windows-1252"]))
    if draw(st.booleans()):
        text = f"<x:xmpmeta xmlns:x='adobe:ns:meta/' x:xmptk='any'>{space}{text}</x:xmpmeta>"
    before = draw(st.sampled_from(["", "<!-- who -->\n", '<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>\n']))
    after = draw(st.sampled_from(["", "\n<?xpacket end='w'?>", "\n<!-- end -->\n"]))
    declared = f"<?xml version='1.0' encoding='{encoding[:6] if 'utf-16' in encoding else encoding}'?>\n"
    is_plain = encoding == "utf-8"
    start = declared if not is_plain or draw(st.booleans()) else ""
    content = (start + before + text + after).encode(encoding, "xmlcharrefreplace")
    marks = {"utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE}
    if is_plain and draw(st.booleans()):
        content = codecs.BOM_UTF8 + content
    return Sidecar(marks.get(encoding, b"") + content, encoding)
