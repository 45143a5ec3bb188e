import pytest

from mlcil.data.xml_places import apply, find_elements, indentation, insertion, removal

TEXT = b"""\xef\xbb\xbf<?xml version='1.0' encoding='latin-1'?><!-- <x> --><?go <y>?>
<a xmlns="one" xmlns:p="two" p:k=">'/>" k='"&lt;'>\xc3\xa4<![CDATA[<b>]]>
  <p:b xmlns:p="three" p:k=""/>&amp;<c xmlns=""  ><d/></c
  >
</a><!-- </a> -->"""


def test_names_texts_and_places():
    root = find_elements(TEXT)
    assert [element.name for element in root.walk()] == ["{one}a", "{three}b", "c", "d"]
    assert root.attributes == {"{two}k": ">'/>", "k": '"<'}
    assert root.text.split() == ["\xe4<b>", "&"]
    first, second = root.children
    assert (first.written, first.attributes, first.is_one_tag) == ("p:b", {"{three}k": ""}, True)
    assert TEXT[first.start : first.end] == b'<p:b xmlns:p="three" p:k=""/>'
    assert TEXT[second.start : second.end] == b'<c xmlns=""  ><d/></c\n  >'
    assert TEXT[second.inside :].startswith(b"<d/></c")
    assert TEXT[root.end :] == b"<!-- </a> -->"


def test_a_tag_that_only_contains_itself():
    root = find_elements(b"<a><a/></a>")
    assert [(element.start, element.inside, element.end) for element in root.walk()] == [(0, 3, 11), (3, 7, 7)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"<a/>", b"<a><n/></a>"),
        (b"<a\n/>", b"<a\n><n/></a>"),
        (b"<a></a>", b"<a><n/></a>"),
        (b"<a> </a>", b"<a><n/> </a>"),
        (b"<a><b/></a>", b"<a><b/><n/></a>"),
        (b"<a>\r\n\r\n\t<b/>\r\n</a>", b"<a>\r\n\r\n\t<b/>\r\n\t<n/>\r\n</a>"),
        (b"<!-- -->\n<a>\n</a>", b"<!-- -->\n<a>\n <n/>\n</a>"),
    ],
)
def test_removal_is_the_inverse_of_insertion(text, expected):
    root = find_elements(text)
    longer = apply(text, [insertion(root, indentation(text, root).encode() + b"<n/>")])
    assert longer == expected
    shorter = apply(longer, [removal(longer, find_elements(longer).children[-1])])
    assert shorter == (text if b"</a>" in text else text.replace(b"/>", b"></a>"))


def test_edits_in_any_order():
    assert apply(b"abcdef", [(1, 2, b"XX"), (4, 4, b"Y"), (0, 0, b"Z"), (5, 6, b"")]) == b"ZaXXcdYe"
