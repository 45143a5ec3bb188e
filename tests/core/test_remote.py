"""Files at URLs: in memory and below file://, and one clear line for whatever goes wrong."""

import pickle
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import known_implementations

from mlcil.core.errors import UserError
from mlcil.core.remote import RemoteError, check_local, fetched, is_url, list_files, path_or_url, read_bytes

FILES = ("a.jpg", "b.PNG", "in/c.jpg", "in/.hidden/d.jpg", ".e.jpg", "[1].jpg")


@pytest.fixture(params=["memory", "file"])
def base(request, tmp_path):
    """The URL of a folder that has FILES, each with its own name as content."""
    url = f"memory:/{tmp_path}" if request.param == "memory" else f"file://{tmp_path}"
    for name in FILES:
        with fsspec.open(f"{url}/{name}", "wb", auto_mkdir=True) as file:
            file.write(name.encode())
    return url


@pytest.mark.parametrize("name", ["s3://bucket/a.jpg", "file:///a", "memory://a", "HTTPS://host/a", "git+ssh://host/a"])
def test_a_url_stays_as_it_is(name):
    assert is_url(name)
    assert path_or_url(name) == name


@pytest.mark.parametrize("name", ["a.jpg", "/a/b", "C:/a", "C://a", "s3:/bucket", "a/s3://b", "", "://a", "1 b://c"])
def test_everything_else_is_a_path(name):
    assert not is_url(name)
    assert path_or_url(name) == Path(name)


def test_every_byte_is_read(base):
    assert [read_bytes(f"{base}/{name}") for name in FILES] == [name.encode() for name in FILES]


@pytest.mark.parametrize(
    ("below", "pattern", "found"),
    [
        ("", None, ["[1].jpg", "a.jpg", "b.PNG", "in/c.jpg"]),
        ("/", None, ["[1].jpg", "a.jpg", "b.PNG", "in/c.jpg"]),
        ("/in", None, ["in/c.jpg"]),
        ("/a.jpg", None, ["a.jpg"]),
        ("/*.jpg", "/*.jpg", ["[1].jpg", "a.jpg"]),
        ("/**/*.jpg", "/**/*.jpg", ["[1].jpg", "a.jpg", "in/c.jpg"]),
        ("/[ab].*", "/[ab].*", ["a.jpg", "b.PNG"]),
        ("/[1].jpg", "/[1].jpg", ["[1].jpg"]),  # a file of that name is no pattern
    ],
)
def test_what_is_listed_can_be_read_under_the_same_beginning(base, below, pattern, found):
    listed = list_files(base + below, None if pattern is None else base + pattern)
    assert listed == [f"{base}/{name}" for name in found]
    assert [read_bytes(one).decode() for one in listed] == found


def test_user_and_host_of_a_url_stay():
    class Elsewhere(MemoryFileSystem):
        protocol = "elsewhere"

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("elsewhere://").partition("/")[2].rstrip("/") if "://" in path else path

        def info(self, path, **_):
            return {"type": "directory"}

        def find(self, path, **_):
            return [f"{path}/a.jpg"]

    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    assert list_files("elsewhere://me@host:22/folder/") == ["elsewhere://me@host:22/folder/a.jpg"]


def test_only_the_files_that_are_wanted_and_there_are_fetched(base):
    with fetched(f"{base}/in", ("c.jpg", "gone.jpg")) as folder:
        assert {one.name: one.read_text() for one in folder.iterdir()} == {"c.jpg": "in/c.jpg"}
    assert not folder.exists()


def test_a_url_that_is_not_there_is_one_line(base):
    with pytest.raises(RemoteError, match=f"^cannot read {base}/gone: missing$"):
        read_bytes(f"{base}/gone")
    with pytest.raises(RemoteError, match=f"^cannot read {base}/gone: missing$"):
        list_files(f"{base}/gone")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError("Access\nDenied"), "no permission (Access Denied)"),
        (IsADirectoryError("x"), "not a file but a folder"),
        (TimeoutError(), "unreadable (TimeoutError)"),
        (type("NoCredentials", (Exception,), {})("Unable to locate credentials"), "unreadable (Unable to locate"),
    ],
)
def test_whatever_a_protocol_raises_is_one_line(monkeypatch, error, reason):
    def fail(*_, **__):
        raise error

    for name in ("cat_file", "info", "get_file"):
        monkeypatch.setattr(MemoryFileSystem, name, fail)
    for deed in (read_bytes, list_files, lambda url: fetched(url, ("x",)).__enter__()):
        with pytest.raises(RemoteError) as caught:
            deed("memory://a")
        assert str(caught.value).startswith(f"cannot read memory://a: {reason}")
        assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(known_implementations, "far", {"class": "farfs.FarFileSystem", "err": "Install farfs"})
    with pytest.raises(RemoteError, match=r"far://a: its protocol needs a package \(Install farfs\)"):
        read_bytes("far://a")
    with pytest.raises(RemoteError, match=r"unreadable \(Protocol not known: nowhere\)"):
        read_bytes("nowhere://a")


def test_the_error_survives_a_process():
    error = pickle.loads(pickle.dumps(RemoteError("s3://a", "missing")))
    assert (str(error), error.reason) == ("cannot read s3://a: missing", "missing")


def test_nothing_is_written_to_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="^cannot write to s3:/bucket/a: expected a local path"):
        check_local(Path("s3://bucket/a"))
    (tmp_path / "odd:").mkdir()
    for path in ("odd:/a", "a:b/c", "/s3:/a", "plain"):
        check_local(Path(path))


def test_paths_do_without_fsspec(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"1")
    (tmp_path / "t.csv").write_text("path,labels\na.jpg,x\n")
    code = f"""if True:
        import sys
        from mlcil.core.files import write_text
        from mlcil.data.decoding import read_content
        from mlcil.data.sources import read
        from mlcil.serving.photo_lists import list_photos
        write_text(__import__("pathlib").Path({str(tmp_path)!r}, "b"), "")
        assert list_photos([{str(tmp_path)!r}]) == list(read({str(tmp_path / "t.csv")!r}).paths)
        assert read_content({str(tmp_path / "a.jpg")!r}) == b"1"
        sys.exit("fsspec" in sys.modules)
    """
    subprocess.run([sys.executable, "-c", code], check=True)
