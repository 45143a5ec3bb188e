import inspect

import pytest

from mlcil.core.errors import UserError
from mlcil.data import sources
from mlcil.data.sources import SOURCES, load

ROWS = "path,labels,what,split\na.jpg,cat,cow,train\nb.jpg,dog,cow,test\n"


@pytest.fixture
def calls(monkeypatch):
    """Replaces every reader by one that records what it was called with."""
    recorded = []

    def record(*arguments, **options):
        recorded.append((*map(str, arguments), options))

    fakes = {
        name: sources.Source(name, source.usage, source.summary, source.options, record)
        for name, source in SOURCES.items()
    }
    monkeypatch.setattr(sources, "SOURCES", fakes)
    return recorded


@pytest.mark.parametrize(
    ("spec", "call"),
    [
        ("coco:some/where", ("some/where", {})),
        ("coco:some/where,year=2017", ("some/where", {"year": "2017"})),
        ("coco:a,b,train=c.json,test=d,e.json", ("a,b", {"train": "c.json", "test": "d,e.json"})),
        ("voc:x, y,difficult=unknown", ("x, y", {"difficult": "unknown"})),
        ("voc:odd-name=1/x", ("odd-name=1/x", {})),
        ("voc:a,not an option=1", ("a,not an option=1", {})),
        ("table:t.csv,test_fraction=0.3,path=p", ("t.csv", {"test_fraction": 0.3, "path": "p"})),
        ("table:C:/t.csv,labels=a,split=b", ("C:/t.csv", {"labels": "a", "split": "b"})),
        ("digits", ({},)),
        ("digits:", ({},)),
        ("digits:train=400,test=200,size=32,seed=1", ({"train": 400, "test": 200, "size": 32, "seed": 1},)),
    ],
)
def test_what_a_spec_means(calls, spec, call):
    load(spec)
    assert calls == [call]


def test_images_is_shorthand_for_the_option(calls, tmp_path):
    load("coco:x", images=str(tmp_path))
    load(f"coco:x,images={tmp_path}")
    assert calls[0] == calls[1] == ("x", {"images": tmp_path})


@pytest.mark.parametrize("spec", ["voc:x", "digits"])
def test_kinds_without_images(spec):
    with pytest.raises(UserError, match=f"unknown option of {spec.partition(':')[0]} 'images'"):
        load(spec, images="somewhere")


def test_a_table_for_real(tmp_path):
    file = tmp_path / "odd, name.csv"
    file.write_text(ROWS)
    assert load(f"table:{file}").train.classes == ("cat", "dog")
    assert load(f"table:{file},labels=what").train.classes == ("cow",)
    assert load(f"table:{file}", images="elsewhere").train.paths == ("elsewhere/a.jpg",)


def test_digits_for_real():
    data = load("digits:train=3,test=2,size=16")
    assert (len(data.train), len(data.test)) == (3, 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cocoo:x", "unknown data set 'cocoo', did you mean 'coco'"),
        ("", "unknown data set ''"),
        ("coco", "lacks its path, expected coco:PATH"),
        ("table:", "lacks its path, expected table:FILE"),
        ("coco:x,yaer=2017", "unknown option of coco 'yaer', did you mean 'year'"),
        ("coco:x,year=2014,yaer=2017", "unknown option of coco 'yaer'"),
        ("digits:trian=3", "unknown option of digits 'trian', did you mean 'train'"),
        ("digits:400", "unknown option of digits '400'"),
        ("digits:train=many", "got 'many' for option train of digits, expected a whole number"),
        ("digits:train=3,5", "got '3,5' for option train of digits"),
        ("digits:train=3,train=4", "option train of digits is given twice: '3' and '4'"),
        ("table:t.csv,test_fraction=x", "got 'x' for option test_fraction of table, expected a number"),
        ("table:t.csv,path=", "got '' for option path of table"),
    ],
)
def test_mistakes(spec, message):
    with pytest.raises(UserError, match=message) as caught:
        load(spec)
    assert "\n" not in str(caught.value)


def test_images_given_twice():
    with pytest.raises(UserError, match="option images of coco is given twice"):
        load("coco:x,images=a", images="b")


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES.keys())
def test_every_option_is_a_parameter_of_its_reader(source):
    parameters = set(inspect.signature(source.read).parameters) - {"root", "file"}
    assert parameters == set(source.options)
    assert source.usage.partition(":")[0] == source.name
    assert source.summary
