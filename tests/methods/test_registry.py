"""Methods by name, ours and those of other packages."""

import pytest

from mlcil.core.errors import UserError
from mlcil.methods import registry
from mlcil.methods.base import Method
from mlcil.methods.finetune import FineTuning
from mlcil.methods.joint import Joint
from mlcil.methods.krt import KRT


class Other(Method):
    name, summary, family, reference = "other", "a method of another package", "none", "nowhere"


class Again(Method):
    name, summary, family, reference = "krt", "a name already taken", "none", "nowhere"


class Entry:
    def __init__(self, found):
        self.found, self.value = found, "package.module:Thing"

    def load(self):
        return self.found


@pytest.fixture
def install(monkeypatch):
    """Pretend that another package registers something."""

    def pretend(*found):
        asked = []

        def entry_points(group):
            asked.append(group)
            return [Entry(one) for one in found]

        monkeypatch.setattr(registry, "entry_points", entry_points)
        registry.all_methods.cache_clear()
        return asked

    yield pretend
    registry.all_methods.cache_clear()


def test_names(install):
    install()
    methods = registry.all_methods()
    assert (methods["ft"], methods["joint"], methods["krt"]) == (FineTuning, Joint, KRT)
    for name, method in methods.items():
        assert name == method.name == registry.method_class(name).name
        assert all(isinstance(text, str) and text for text in (method.summary, method.family, method.reference))
        assert method.buffer_use in ("none", "optional", "required")
        method.Config()  # every option has a default


def test_an_unknown_name_gets_a_suggestion(install):
    install()
    with pytest.raises(UserError, match=r"unknown method 'kr', did you mean 'krt'\? Allowed: .*joint") as error:
        registry.method_class("kr")
    assert len(str(error.value).splitlines()) == 1


def test_another_package_may_add_a_method(install):
    asked = install(Other)
    assert registry.method_class("other") is Other
    assert registry.method_class("krt") is KRT
    assert asked == ["mlcil.methods"]  # once: the list is kept


@pytest.mark.parametrize("thing", [object, "text", lambda: None])
def test_what_is_no_method_is_refused(install, thing):
    install(thing)
    with pytest.raises(UserError, match=r"'package.module:Thing' in group mlcil.methods is not a Method class"):
        registry.all_methods()


def test_a_name_stands_once(install):
    install(Again)
    with pytest.raises(UserError, match=r"'package.module:Thing' registers method 'krt', which exists already"):
        registry.all_methods()
