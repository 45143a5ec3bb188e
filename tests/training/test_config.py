import dataclasses

import pytest
import yaml

from mlcil.core.config import about, option_names
from mlcil.core.errors import UserError
from mlcil.data.augmentation import AUGMENTATIONS
from mlcil.methods.krt import KRTConfig
from mlcil.methods.registry import all_methods
from mlcil.models.backbone import Backbone
from mlcil.training.config import RunConfig, RunSettings, make_config, read_config


def test_defaults():
    config = make_config({})
    assert config == RunConfig(RunSettings(), KRTConfig())


def test_changes_win_over_values():
    values = {"epochs": 5, "lr": 0.1, "options": {"width": 64, "heads": 2}}
    config = make_config(values, {"epochs": "7", "width": "32", "data": "table:x"})
    assert (config.settings.epochs, config.settings.lr, config.settings.data) == (7, 0.1, "table:x")
    assert (config.options.width, config.options.heads) == (32, 2)
    assert values == {"epochs": 5, "lr": 0.1, "options": {"width": 64, "heads": 2}}  # untouched


def test_a_change_of_the_method_decides_which_options_there_are():
    config = make_config({"method": "krt"}, {"method": "ft", "missing": "ignore"})
    assert config.settings.method == "ft"
    assert type(config.options) is all_methods()["ft"].Config
    assert config.options.missing == "ignore"
    with pytest.raises(UserError, match=r"^unknown key for method ft 'width'"):
        make_config({}, {"method": "ft", "width": 3})
    with pytest.raises(UserError, match=r"^unknown key in options of ft 'width'"):
        make_config({"method": "ft", "options": {"width": 3}})


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        ({"epoch": 3}, {}, "unknown key in run.yaml 'epoch', did you mean 'epochs'? Allowed: accelerator, "),
        ({"width": 3}, {}, "unknown key in run.yaml 'width'"),
        ({"options": {"epochs": 3}}, {}, "unknown key in options of krt 'epochs'"),
        ({"options": {"widht": 3}}, {}, "unknown key in options of krt 'widht', did you mean 'width'?"),
        ({"options": {1: 3}}, {}, "unknown key in options of krt 1. Allowed: "),
        ({}, {"widht": 3}, "unknown key for method krt 'widht', did you mean 'width'?"),
        ({}, {"batchsize": 3}, "unknown key for method krt 'batchsize', did you mean 'batch_size'?"),
        ({}, {"options": {}}, "unknown key for method krt 'options'"),
        ({"method": "krtt"}, {}, "unknown method 'krtt', did you mean 'krt'? Allowed: "),
        ({}, {"method": "joined"}, "unknown method 'joined'"),
        ({"epochs": True}, {}, "run.yaml: epochs: got True, expected a whole number"),
        ({"epochs": 0}, {}, "run.yaml: epochs: got 0, expected at least 1"),
        ({"warmup": 1.5}, {}, "run.yaml: warmup: got 1.5, expected 0 to 1"),
        ({"precision": "8"}, {}, "run.yaml: precision: got '8', expected one of 32-true, "),
        ({}, {"heads": "x"}, "options of krt: heads: got 'x', expected a whole number"),
        ({"buffer": "lots"}, {}, "buffer: got 'lots', expected a number per class such as 20, or total:1000"),
        ({}, {"buffer": "total:"}, "buffer: got 'total:', expected a number per class"),
        ({"buffer": -1}, {}, "buffer: got '-1', expected a number per class"),
        ({"buffer": "each:5"}, {}, "buffer: got 'each:5', expected a number per class"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(values, changes, message):
    with pytest.raises(UserError) as caught:
        make_config(values, changes, "run.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_backbone_is_looked_up_when_it_is_made():
    with pytest.raises(UserError) as caught:
        Backbone(make_config({"backbone": "small_cnov"}).settings.backbone, 32)
    assert str(caught.value).startswith("unknown backbone 'small_cnov', did you mean 'small_conv'?")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("buffer", [20, "20", "total:1000", 0])
def test_a_buffer_may_be_a_number_or_text(buffer):
    assert make_config({"buffer": buffer}).settings.buffer == str(buffer)


def with_buffer(method):
    """The least that a configuration of this method needs."""
    return {"method": method, "buffer": "20" if all_methods()[method].buffer_use == "required" else "0"}


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_a_configuration_comes_back_from_its_file(method, tmp_path):
    values = with_buffer(method) | {"lr": "3e-5", "order": "shuffle:3", "ema": 0.9997, "cache": None}
    missing = about(all_methods()[method].Config.__dataclass_fields__["missing"]).choices[-1]  # ignore, where it may be
    config = make_config(values | {"options": {"missing": missing}})
    assert make_config(config.to_dict()) == config
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    assert make_config(read_config(tmp_path / "config.yaml")) == config
    assert config.differences(config.to_dict()) == []


def test_differences_name_what_decides_the_result_only():
    config = make_config({}, {"epochs": 3, "width": 64, "data": "table:x"})
    stored = make_config({}, {"epochs": 5, "data": "table:x", "threads": 4, "cache": "none", "devices": 2})
    assert config.differences(stored.to_dict()) == ["epochs: 5 -> 3", "options.width: 384 -> 64"]
    other = make_config({}, {"method": "ft"}).to_dict()
    assert make_config({}).differences(other) == ["method: 'ft' -> 'krt'"]


def test_settings_of_the_machine_never_make_a_difference():
    machine = {field.name for field in dataclasses.fields(RunSettings) if about(field).machine}
    assert {"threads", "workers", "devices", "cache", "accelerator"} <= machine
    stored = make_config({}).to_dict() | dict.fromkeys(machine, "something else")
    assert make_config({}).differences(stored) == []
    assert not {"seed", "lr", "epochs", "precision", "batch_size"} & machine


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_no_option_of_a_method_hides_a_setting(method):
    assert not set(option_names(RunSettings)) & set(option_names(all_methods()[method].Config))
    assert "options" not in option_names(RunSettings)


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_every_option_is_documented_and_its_default_legal(method):
    for kind in (RunSettings, all_methods()[method].Config):
        assert all(about(field).help for field in dataclasses.fields(kind))
    make_config(make_config(with_buffer(method)).to_dict())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"epochs: [", "configuration {} is not valid YAML: "),
        (b"a: b: c", "configuration {} is not valid YAML: "),
        (b"\tepochs: 1", "configuration {} is not valid YAML: "),
        (b"epochs: \xff", "configuration {} is not valid YAML: "),
        (b"", "configuration {} must map names to values"),
        (b"- epochs", "configuration {} must map names to values"),
        (b"epochs", "configuration {} must map names to values"),
        (b"1: 2", "configuration {} must map names to values"),
        (b"options: 3", "configuration {}: options must map names to values"),
        (b"options: [width]", "configuration {}: options must map names to values"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(tmp_path, content, message):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_config(file)
    assert str(caught.value).startswith(message.format(file))
    assert "\n" not in str(caught.value)


def test_a_missing_file_or_a_folder_is_refused(tmp_path):
    with pytest.raises(UserError) as caught:
        read_config(tmp_path / "run.yaml")
    assert str(caught.value) == f"configuration {tmp_path / 'run.yaml'} does not exist"
    with pytest.raises(UserError, match=r"^cannot read configuration"):
        read_config(tmp_path)


def test_every_augmentation_can_be_chosen():
    (augment,) = [field for field in dataclasses.fields(RunSettings) if field.name == "augment"]
    assert about(augment).choices == AUGMENTATIONS


def test_options_may_be_left_empty(tmp_path):
    (tmp_path / "run.yaml").write_text("epochs: 3\noptions:\n")
    values = read_config(tmp_path / "run.yaml")
    assert make_config(values).settings.epochs == 3
    assert make_config({}).differences(values | make_config({}).to_dict()) == []
