"""Methods by name, ours and those of other packages."""

import pytest

from mlcil.core.config import build, option_names
from mlcil.core.errors import UserError
from mlcil.methods import registry
from mlcil.methods.base import Method
from mlcil.methods.finetune import FineTuning
from mlcil.methods.joint import Joint
from mlcil.methods.krt import KRT
from mlcil.training.config import RunSettings, make_config

NAMES = (
    *("ft", "joint", "probes", "lwf", "oewc", "prs", "ocdm", "er", "icarl", "bic", "tpcil", "podnet", "derpp", "l2p"),
    *("krt", "kd", "krt_without_dpl", "krt_without_ica", "krt_with_kd", "class_queries", "analytic", "adaptive"),
)


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


@pytest.mark.parametrize("name", NAMES)
def test_an_option_never_has_the_name_of_a_setting(name):
    own = option_names(registry.method_class(name).Config)
    assert not set(own) & set(option_names(RunSettings))  # `--set key=value` means one thing
    assert "options" not in own
    assert "missing" in own


@pytest.mark.parametrize("name", NAMES)
def test_what_a_method_declares_can_be_built(name):
    method = registry.method_class(name)
    build(RunSettings, method.setting_defaults, "setting_defaults")
    assert build(method.Config, method.finetuning_options or {}, "plain") == method.Config(
        **(method.finetuning_options or {})
    )
    buffer = {"none": "0", "optional": "0", "required": "5"}[method.buffer_use]
    config = make_config({"method": name, "buffer": buffer})
    assert config.options == method.Config()
    assert {key: getattr(config.settings, key) for key in method.setting_defaults} == dict(method.setting_defaults)


@pytest.mark.parametrize("name", NAMES)
def test_the_buffer_is_checked_against_the_methods_use_of_it(name):
    method = registry.method_class(name)
    refused = {"none": "5", "required": "0"}.get(method.buffer_use)
    allowed = {"0", "5", "total:9"} - ({"5", "total:9"} if refused == "5" else {refused})
    for buffer in allowed:
        assert make_config({"method": name, "buffer": buffer}).settings.buffer == buffer
    for buffer in {"0", "5", "total:9"} - allowed:
        with pytest.raises(UserError, match=f"^method {name} (keeps no exemplars|needs a buffer)") as error:
            make_config({"method": name, "buffer": buffer})
        assert len(str(error.value).splitlines()) == 1


def test_a_method_can_be_registered_in_this_process(install):
    install()

    @registry.register
    class Fresh(FineTuning):
        name = "fresh_method"

    assert registry.method_class("fresh_method") is Fresh
    assert set(registry.all_methods()) == {*NAMES, "fresh_method"}
    assert make_config({"method": "fresh_method"}).settings.method == "fresh_method"
    del registry.all_methods()["fresh_method"]
    with pytest.raises(UserError, match="unknown method 'fresh_method'"):
        registry.method_class("fresh_method")
