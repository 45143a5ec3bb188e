"""Reading weight files, and refusing those that are broken, foreign or leak the benchmark."""

import json
import os
import pickle

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file

from mlcil.core.errors import UserError
from mlcil.data.published import BENCHMARKS
from mlcil.models import weights
from mlcil.models.backbone import Backbone
from mlcil.models.weights import check_fetchable, load_weights
from mlcil.training.config import make_config
from mlcil.training.prepare import prepare_method

HEADS = ["head.fc.weight", "classifier.weight", "fc.weight", "head.weight", "module.fc.weight"]


def small(seed=0):
    torch.manual_seed(seed)
    return Backbone("small_conv", 32)


def same(backbone, other):
    own = backbone.net.state_dict()
    return all(
        torch.equal(value, own[key])
        for key, value in other.net.state_dict().items()
        if not key.endswith("num_batches_tracked")
    )


def refusal(backbone, file, counts=(), vocabularies=()):
    with pytest.raises(UserError) as error:
        load_weights(backbone, str(file), counts, vocabularies)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    return text


WRAPPINGS = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"state_dict": state, "epoch": 3},
    "model": lambda state: {"model": state},
    "module": lambda state: {f"module.{key}": value for key, value in state.items()},
    "both": lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
}


@pytest.mark.parametrize("wrapping", sorted(WRAPPINGS))
@pytest.mark.parametrize("suffix", [".pth", ".pt"])
def test_pth_round_trip(tmp_path, wrapping, suffix):
    source, target, file = small(0), small(1), tmp_path / f"weights{suffix}"
    torch.save(WRAPPINGS[wrapping](source.net.state_dict()), file)
    assert not same(target, source)
    assert load_weights(target, str(file), {80}) == file
    assert same(target, source)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_safetensors_round_trip(tmp_path, prefix):
    source, target, file = small(0), small(1), tmp_path / "weights.safetensors"
    save_file({f"{prefix}{key}": value.contiguous() for key, value in source.net.state_dict().items()}, file)
    assert load_weights(target, str(file), {80}) == file
    assert same(target, source)


def test_float16_becomes_float32(tmp_path):
    source, target, file = small(0), small(1), tmp_path / "half.safetensors"
    half = {key: value.half().contiguous() for key, value in source.net.state_dict().items() if "num_b" not in key}
    save_file(half, file)
    load_weights(target, str(file), ())
    state = target.net.state_dict()
    assert all(torch.equal(state[key], value.float()) for key, value in half.items())
    assert {parameter.dtype for parameter in target.parameters()} == {torch.float32}


def test_none_changes_nothing():
    target, source = small(3), small(3)
    assert load_weights(target, None, {80}) is None
    assert same(target, source)


@pytest.mark.parametrize("name", ["missing.safetensors", "missing.pth", "missing.pt"])
def test_a_missing_file(tmp_path, name):
    assert "does not exist" in refusal(small(), tmp_path / name)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize(
    "content",
    [b"", b"garbage", b"\x80\x02", b"PK\x03\x04broken", bytes(range(256)), b"\xff" * 64, b"(lp0\n."],
    ids=["empty", "text", "cut", "zip", "bytes", "ones", "list"],
)
def test_a_garbage_file(tmp_path, suffix, content):
    file = tmp_path / f"garbage{suffix}"
    file.write_bytes(content)
    assert str(file) in refusal(small(), file)


def test_a_file_without_a_state_dict(tmp_path):
    file = tmp_path / "list.pth"
    torch.save([torch.zeros(2)], file)
    assert "plain state dict" in refusal(small(), file)
    torch.save({"state_dict": {"epoch": 3}}, file)
    assert "plain state dict" in refusal(small(), file)


def test_code_in_a_pickle_is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    for number, content in enumerate([Trap(), {"state_dict": {"weight": Trap()}}]):
        plain, saved = tmp_path / f"plain{number}.pth", tmp_path / f"saved{number}.pth"
        plain.write_bytes(pickle.dumps(content, protocol=2))
        torch.save(content, saved)
        for file in (plain, saved):
            assert "cannot read" in refusal(small(), file)
    assert not (tmp_path / "sprung").exists()


def test_another_architecture_names_keys(tmp_path):
    file, before = tmp_path / "other.pth", small(0)
    torch.save(timm.create_model("test_resnet").state_dict(), file)
    target = small(0)
    text = refusal(target, file)
    assert "do not fit backbone small_conv" in text
    assert "blocks.0.0.weight" in text
    assert same(target, before)


def test_another_shape_names_the_key(tmp_path):
    state = small().net.state_dict()
    state["blocks.1.0.weight"] = torch.zeros(64, 32, 5, 5)
    file = tmp_path / "shape.pth"
    torch.save(state, file)
    assert "1 of another shape, first blocks.1.0.weight" in refusal(small(), file)


@pytest.mark.parametrize("key", HEADS)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_leaked_classifier_is_refused(tmp_path, key, suffix):
    file, state = tmp_path / f"leak{suffix}", dict(small().net.state_dict())
    state[key] = torch.zeros(80, 128)
    (save_file if suffix == ".safetensors" else torch.save)(
        {name: value.contiguous() for name, value in state.items()}, file
    )
    text = refusal(small(), file, {80})
    assert "80 outputs" in text
    assert load_weights(small(), str(file), {20}) == file


@pytest.mark.parametrize("key", HEADS)
def test_a_classifier_of_imagenet_is_left_out(tmp_path, key):
    source, target, file = small(0), small(1), tmp_path / "imagenet.pth"
    torch.save(source.net.state_dict() | {key: torch.zeros(1000, 128)}, file)
    assert load_weights(target, str(file), {80}) == file
    assert same(target, source)


@pytest.mark.parametrize(
    "others",
    [
        {"blocks.9.conv.weight": torch.zeros(80, 4, 1, 1)},
        {"head.conv1.weight": torch.zeros(80, 8, 3, 3)},
        {"head.0.weight": torch.zeros(80, 8), "head.2.weight": torch.zeros(256, 80)},
        {"blocks.9.se.fc.0.weight": torch.zeros(80, 8), "blocks.9.se.fc.2.weight": torch.zeros(8, 80)},
        {"classifier.norm.weight": torch.zeros(80)},
    ],
)
def test_a_layer_of_eighty_channels_is_no_classifier(tmp_path, others):
    file = tmp_path / "inner.pth"
    torch.save(small().net.state_dict() | others, file)
    assert load_weights(small(), str(file), {80}) == file


@pytest.mark.parametrize(
    ("shapes", "key"),
    [
        ({"head.0.weight": (8, 8), "head.2.weight": (80, 8)}, "head.2.weight"),
        ({"head.fc.weight": (80, 8), "head.norm.weight": (8,)}, "head.fc.weight"),
        ({"head.0.weight": (80, 8), "head.1.weight": (80,), "head.1.bias": (80,)}, "head.0.weight"),
        ({"head.weight_g": (80, 1), "head.weight_v": (80, 8)}, "head.weight_v"),
        ({"fc.W": (1, 80, 8), "fc.b": (1, 80)}, "fc.W"),  # Query2Label
        (
            {  # ML-Decoder, whose queries stand for groups of classes
                "head.decoder.query_embed.weight": (20, 8),
                "head.decoder.duplicate_pooling": (20, 8, 4),
                "head.decoder.duplicate_pooling_bias": (80,),
            },
            "head.decoder.duplicate_pooling_bias",
        ),
    ],
)
def test_a_classifier_counts_by_its_last_linear_layer(tmp_path, shapes, key):
    file = tmp_path / "layers.pth"
    torch.save(small().net.state_dict() | {name: torch.zeros(shape) for name, shape in shapes.items()}, file)
    assert f"classifier of 80 outputs ({key})" in refusal(small(), file, {80})


@pytest.mark.parametrize("name", ["small_conv", "test_vit", "resnet18"])
def test_an_unknown_tag(name):
    text = refusal(Backbone(name, 64), "nonsense")
    assert f"weights 'nonsense' for {name}" in text
    assert "Allowed" in text
    assert ("a1_in1k" in text) == (name == "resnet18")


def test_the_small_net_has_no_pretrained_weights():
    assert "neither a file nor a timm tag" in refusal(small(), "pretrained")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """An empty cache of downloads, and a hub that answers or does not."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "older"))
    return lambda answers: monkeypatch.setattr(weights, "_hub_answers", lambda: answers)


@pytest.mark.parametrize("message", ["refused\nand more", ""])
def test_a_download_that_fails_is_one_line(monkeypatch, hub, message):
    def fail(*_, **__):
        raise OSError(message)

    hub(answers=True)
    backbone = Backbone("test_vit", 160)
    monkeypatch.setattr(timm, "create_model", fail)
    text = refusal(backbone, "pretrained")
    assert f"cannot fetch the weights of test_vit: {'refused' if message else 'OSError'} Give a local file" in text


def test_no_network_is_one_line_and_no_request(hub):
    hub(answers=False)  # what follows would otherwise repeat its requests for a minute
    text = refusal(Backbone("test_vit", 160), "pretrained")
    assert "they are not in the cache, and the Hugging Face Hub cannot be reached. Give a local file" in text
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False


def test_weights_in_the_cache_need_no_network(hub, tmp_path):
    hub(answers=False)
    torch.manual_seed(5)
    source = timm.create_model("test_vit")
    with pytest.raises(UserError, match="weights of test_vit: they are not in the cache"):
        check_fetchable("test_vit", "pretrained")
    folder = tmp_path / f"models--{source.pretrained_cfg['hf_hub_id'].replace('/', '--')}"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    save_file(source.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
    check_fetchable("test_vit", "pretrained")
    backbone = Backbone("test_vit", 160)
    load_weights(backbone, "pretrained", {80})
    assert torch.equal(backbone.net.pos_embed, source.pos_embed)


def test_a_hub_that_answers_is_enough(hub):
    hub(answers=True)
    check_fetchable("test_vit", "pretrained")


def test_what_timm_does_not_know_is_left_to_loading(hub):
    hub(answers=False)
    check_fetchable("small_conv", "pretrained")
    check_fetchable("resnet18", "nonsense")


def test_a_tag_fetches_that_variant(monkeypatch, hub):
    hub(answers=True)
    backbone, asked, create = Backbone("test_vit", 160), [], timm.create_model

    def offline(name, pretrained, num_classes):
        asked.append((name, pretrained))
        torch.manual_seed(5)
        return create(name.partition(".")[0], num_classes=num_classes)

    tag = timm.list_pretrained("test_vit.*")[0].partition(".")[2]
    monkeypatch.setattr(timm, "create_model", offline)
    assert load_weights(backbone, tag, {80}) is None
    assert asked == [(f"test_vit.{tag}", True)]
    torch.manual_seed(5)
    assert torch.equal(backbone.net.pos_embed, create("test_vit", num_classes=0).pos_embed)


def test_positions_are_resized_for_another_image_size(tmp_path):
    source, file = timm.create_model("test_vit", num_classes=0, img_size=64), tmp_path / "vit.pth"
    with torch.no_grad():
        source.pos_embed[:, 1:] = torch.arange(4.0).repeat(4)[None, :, None]  # columns count from left to right
    torch.save(source.state_dict(), file)
    target = Backbone("test_vit", 128)
    load_weights(target, str(file), ())
    positions = target.net.pos_embed[0, 1:].unflatten(0, (8, 8))
    assert target.net.pos_embed.shape == (1, 65, 64)
    assert torch.equal(target.net.pos_embed[0, 0], source.pos_embed[0, 0])
    assert (positions.diff(dim=1)[:, 1:-1] > 0).all()  # still from left to right
    torch.testing.assert_close(positions[0], positions[5], rtol=1e-4, atol=1e-4)
    assert torch.equal(target.net.patch_embed.proj.weight, source.patch_embed.proj.weight)


NAMES = BENCHMARKS["voc"].names
SAYS = {
    "a list": {"classes": list(NAMES)},
    "other spellings": {"meta": {"CLASSES": [name.upper().replace("tvmonitor", "TV/Monitor") for name in NAMES]}},
    "by number": {"hyper_parameters": {"id2label": {str(number): name for number, name in enumerate(NAMES)}}},
    "to numbers": {"label2id": {name: number for number, name in enumerate(NAMES)}},
    "half of them and others": {"names": [*NAMES[:10], "zebra", "kite"]},
}


@pytest.mark.parametrize("said", SAYS)
def test_a_checkpoint_that_names_the_classes_is_refused(tmp_path, said):
    file, state = tmp_path / "named.pth", small().net.state_dict()
    torch.save({"state_dict": state, "epoch": 3} | SAYS[said], file)
    text = refusal(small(), file, vocabularies=[NAMES])
    assert "of the classes, such as aeroplane: it was probably trained on the classes" in text
    assert "--set allow_known_classes=true" in text
    assert load_weights(small(), str(file), {20}) == file


def test_metadata_and_a_configuration_beside_the_file_are_read(tmp_path):
    file = tmp_path / "model.safetensors"
    state = {key: value.contiguous() for key, value in small().net.state_dict().items()}
    save_file(state, file, metadata={"format": "pt", "labels": ",".join(NAMES)})
    assert "names 20 of the classes" in refusal(small(), file, vocabularies=[NAMES])
    save_file(state, file, metadata={"format": "pt", "labels": json.dumps(NAMES)})
    assert "names 20 of the classes" in refusal(small(), file, vocabularies=[NAMES])
    save_file(state, file)
    assert load_weights(small(), str(file), {20}, [NAMES]) == file
    (tmp_path / "config.json").write_text(json.dumps({"num_classes": 0, "label_names": NAMES}))
    assert "names 20 of the classes" in refusal(small(), file, vocabularies=[NAMES])
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_cfg": {"num_classes": 80}}))
    assert "says that it has 80 classes" in refusal(small(), file, {80})


SELF = [0]
SELF.append(SELF)
ODD = {
    "a number of thousands of digits": {"num_classes": "9" * 5000},
    "deep brackets": {"labels": "[" * 100_000},
    "a list that holds itself": {"classes": SELF},
    "other types": {"num_classes": None, "classes": [1, None, {}], 3: "a,b"},
}


@pytest.mark.parametrize("said", ODD)
def test_whatever_a_file_says_about_itself_is_read_or_left(tmp_path, said):
    file = tmp_path / "odd.pth"
    torch.save({"state_dict": small().net.state_dict()} | ODD[said], file)
    assert load_weights(small(), str(file), {80}, [NAMES]) == file
    (tmp_path / "config.json").write_text('{"a": ')  # belongs to something else
    assert load_weights(small(), str(file), {80}, [NAMES]) == file


@pytest.mark.filterwarnings("ignore:Validating sparse tensor")
@pytest.mark.parametrize(
    "others",
    [{7: torch.zeros(1)}, {"x.weight": torch.zeros(80, 2).to_sparse()}, {"x.weight": torch.zeros(2, device="meta")}],
)
def test_what_is_no_plain_state_dict_is_one_line(tmp_path, others):
    file = tmp_path / "odd.pth"
    torch.save(small().net.state_dict() | others, file)
    assert "does not hold a plain state dict of tensors" in refusal(small(), file)


def test_a_large_vocabulary_that_has_the_words_is_fine(tmp_path):
    file = tmp_path / "imagenet.pth"
    words = [*NAMES, *(f"synset {number}" for number in range(21000))]
    torch.save({"state_dict": small().net.state_dict(), "classes": words, "num_classes": len(words)}, file)
    assert load_weights(small(), str(file), {20, 21, 80, 81, 90, 91}, [NAMES]) == file


@pytest.mark.parametrize(("kind", "outputs"), [("coco", 91), ("coco", 81), ("coco", 20), ("voc", 21), ("voc", 80)])
def test_a_run_on_a_benchmark_refuses_what_knows_it_unless_told_otherwise(tmp_path, kind, outputs):
    file = tmp_path / "leak.pth"
    torch.save(small().net.state_dict() | {"last_linear.weight": torch.zeros(outputs, 8)}, file)
    values = {"method": "ft", "data": f"{kind}:{tmp_path}", "weights": str(file), "image_size": 32}
    classes = BENCHMARKS[kind].classes
    with pytest.raises(UserError, match=rf"has a classifier of {outputs} outputs \(last_linear.weight\)"):
        prepare_method(make_config(values), classes)
    assert prepare_method(make_config(values, {"allow_known_classes": True}), classes)[1] == file
    own = values | {"data": "digits", "backbone": "small_conv"}  # elsewhere these numbers say nothing
    assert prepare_method(make_config(own), 10)[1] == file
