import inspect

import pytest

from mlcil.core.errors import UserError
from mlcil.data import sources
from mlcil.data.images import DataSet, Level
from mlcil.data.listing import Listing
from mlcil.data.sources import SOURCES, kind_of, load, read, resolve

from .fake_contents import FakeContents

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
        ("folder:a,b,labels=xmp,test_fraction=0.5", ("a,b", {"labels": "xmp", "test_fraction": 0.5})),
        ("no/such/t.csv,labels=a", ("no/such/t.csv", {"labels": "a"})),
        ("C:/t.xlsx,separator=comma", ("C:/t.xlsx", {"separator": "comma"})),
        ("table:t.csv,separator=,,labels=a", ("t.csv", {"separator": ",", "labels": "a"})),
        ("p/**/*.jpg,labels=xmp", ("p/**/*.jpg", {"labels": "xmp"})),
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
    assert load(f"{file}").train.classes == ("cat", "dog")
    assert load(f"{file},labels=what").train.classes == ("cow",)
    assert load(f"table:{file}", images="elsewhere").train.paths == ("elsewhere/a.jpg",)
    assert load(f"{file}", images="elsewhere").train.paths == ("elsewhere/a.jpg",)


def test_a_listing_is_resolved_by_its_content(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(ROWS + "c.jpg,owl,,train\n")
    found = read(str(file))
    assert isinstance(found, Listing)
    same = FakeContents(content={str(tmp_path / "c.jpg"): "x", str(tmp_path / "a.jpg"): "x"})
    for data in (resolve(found, same), load(str(file), contents=same)):
        assert isinstance(data, DataSet)
        assert data.train.labels.tolist() == [[1, 0, 1]]
        assert [level for level, _ in data.findings] == [Level.NOTE, Level.LOOK]
    digits = read("digits:train=3,test=2,size=16")
    assert resolve(digits, same) is digits


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["annotations/instances_train2017.json"], "coco"),
        (["VOCdevkit/x"], "voc"),
        (["ImageSets/Main/x"], "voc"),
        (["VOC2007/ImageSets/Main/x"], "voc"),
        (["cat/1.jpg"], "folder"),
        (["annotations/other.json"], "folder"),
    ],
)
def test_the_kind_of_a_folder(tmp_path, files, kind):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert kind_of(str(tmp_path)) == kind
    assert kind_of(f"{tmp_path},test_fraction=0.3") == kind


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("coco:x", "coco"),
        ("digits", "digits"),
        ("digits:seed=1", "digits"),
        ("labels.TSV", "table"),
        ("*.jpg", "folder"),
    ],
)
def test_the_kind_of_a_spec(spec, kind):
    assert kind_of(spec) == kind


def test_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "photos").mkdir()
    assert kind_of("~/photos") == "folder"


def test_which_kinds_take_unlabelled_images_as_negatives():
    assert {name for name, source in SOURCES.items() if source.negatives} == {"table", "folder"}


def test_digits_for_real():
    data = load("digits:train=3,test=2,size=16")
    assert (len(data.train), len(data.test)) == (3, 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("cocoo:x", "unknown data set 'cocoo', did you mean 'coco'"),
        ("", "unknown data set ''"),
        ("cocoo:some/x.csv", "unknown data set 'cocoo', did you mean 'coco'"),
        ("photos", "unknown data set 'photos'. Allowed: coco, digits, folder, table, voc"),
        ("no/photos", "no/photos does not exist; expected a table, a folder, or one of table:FILE, folder:PATH, coco"),
        ("labels.json", "labels.json does not exist"),
        ("no/such/t.csv", "table no/such/t.csv does not exist"),
        ("photos [2020].csv", "table photos .2020..csv does not exist"),
        ("t.xls", "save it as .xlsx or .csv"),
        ("~nobody-of-this-name/x", "~nobody-of-this-name/x does not exist"),
        ("x" * 5000 + "/y", "does not exist"),
        ("folder:", "lacks its path, expected folder:PATH"),
        ("p/*.jpg,label=xmp", "unknown option of folder 'label', did you mean 'labels'"),
        ("p/*.jpg,test_fraction=x", "got 'x' for option test_fraction of folder, expected a number"),
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


@pytest.mark.parametrize("kind", ["table", "folder", "coco", "voc"])
@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", f"{'x' * 5000}*.csv"])
def test_a_name_that_no_file_can_have_is_one_line(kind, name):
    with pytest.raises(UserError):
        read(f"{kind}:{name}")
