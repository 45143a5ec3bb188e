from pathlib import Path

import pytest

from mlcil.data.xmp import BadSidecar, find_sidecars, read_keywords, read_sidecars

PACKET = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<rdf:Description xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:lr="http://ns.adobe.com/lightroom/1.0/">
<dc:title><rdf:Alt><rdf:li>no keyword</rdf:li></rdf:Alt></dc:title>
<dc:subject><rdf:Bag>{subjects}</rdf:Bag></dc:subject>
<lr:hierarchicalSubject><rdf:Bag>{hierarchy}</rdf:Bag></lr:hierarchicalSubject>
</rdf:Description></rdf:RDF></x:xmpmeta>
<?xpacket end="w"?>
"""


def packet(subjects=(), hierarchy=()):
    def items(names):
        return "".join(f"<rdf:li>{name}</rdf:li>" for name in names)

    return PACKET.format(subjects=items(subjects), hierarchy=items(hierarchy))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_keywords(tmp_path, encoding):
    file = tmp_path / "a.xmp"
    file.write_bytes(packet([" dog ", "K\xfche", ""], ["Animals|Cat", "dog"]).encode(encoding))
    assert read_keywords(file) == {"dog", "K\xfche", "Cat"}
    file.write_text(packet(), encoding="utf-8")
    assert read_keywords(file) == set()


def test_the_hierarchy_of_a_tagger_adds_no_keywords(tmp_path):
    file = tmp_path / "a.xmp"
    file.write_text(packet(["a|b"], ["mlcil|a/b", "mlcil", "A|mlcil"]), encoding="utf-8")
    assert read_keywords(file) == {"a|b", "mlcil"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_document_types_are_refused(tmp_path, encoding):
    file = tmp_path / "a.xmp"
    file.write_bytes('<!DOCTYPE a [<!ENTITY b "ccc">]><a>&b;</a>'.encode(encoding))
    with pytest.raises(BadSidecar, match="declares a document type"):
        read_keywords(file)


def test_damage(tmp_path):
    (tmp_path / "a.xmp").write_text(packet(["cat"])[:300])
    (tmp_path / "b.xmp").write_bytes(b"\x00\xff\x00")
    (tmp_path / "c.xmp").write_text('<?xml version="1.0" encoding="nonsense"?><a/>')
    for name in "abc":
        with pytest.raises(BadSidecar, match="not XML"):
            read_keywords(tmp_path / f"{name}.xmp")
    with pytest.raises(BadSidecar, match="unreadable"):
        read_keywords(tmp_path / "gone.xmp")


def test_both_names_of_a_sidecar(tmp_path):
    photos = [tmp_path / name for name in ("a.jpg", "b.JPG", "c.jpg", "d.jpg")]
    for name, keywords in {"a.jpg.xmp": ["cat"], "a.xmp": ["dog"], "B.XMP": ["owl"], "._c.xmp": ["bad"]}.items():
        (tmp_path / name).write_text(packet(keywords), encoding="utf-8")
    (tmp_path / "d.xmp").write_text("broken")
    found = find_sidecars(photos)
    assert found[photos[0]] == [tmp_path / "a.jpg.xmp", tmp_path / "a.xmp"]
    keywords, damaged = read_sidecars(found)
    assert keywords == {photos[0]: {"cat", "dog"}, photos[1]: {"owl"}, photos[3]: set()}
    assert len(damaged) == 1
    assert damaged[0].startswith(str(Path(tmp_path / "d.xmp: not XML")))
