"""Short lessons on tables of tiny pictures, and what must be equal of two taggers."""

from mlcil.serving.learning import LearnOptions, learn

SMALL = {"image_size": 32, "threads": 1}
TRAINED = {"image_size": 16, "threads": 1, "epochs": 2, "batch_size": 16, "augment": "flip"}
TRAINED |= {"base_lr": 1e-3, "lr": 1e-3}
KRT = {"width": 16, "heads": 4, "labels_per_image": 1.0}


def start(table, *, settings=SMALL, backbone="small_conv", **options):
    """A new tagger."""
    return learn(None, str(table), LearnOptions(backbone=backbone, settings=settings, **options))[0]


def start_trained(table, method, *, work=None, **settings):
    """A new tagger of a method that trains."""
    settings = TRAINED | (KRT if method == "krt" else {}) | settings
    return start(table, settings=settings, method=method, work=work)


def teach(tagger, table, **options):
    """What a tagger becomes by a table; itself stays as it is."""
    return learn(tagger, str(table), LearnOptions(**options))[0]


def photos_of(tables, numbers):
    return [tables / f"{number}.png" for number in numbers]


def by_label(tagger, photos):
    """What a person can notice of each label: its scores of these photos, threshold, and counts."""
    facts = zip(tagger.labels, tagger.scores(photos).T, tagger.thresholds, strict=True)
    return {one.name: (scores, threshold, one.positives, one.images) for one, scores, threshold in facts}


def assert_same(first, second, photos, atol=0.0):
    """Two taggers give the same labels the same scores and thresholds, from as many photos."""
    one, other = by_label(first, photos), by_label(second, photos)
    assert one.keys() == other.keys()
    for name, (scores, threshold, *counts) in one.items():
        assert abs(scores - other[name][0]).max() <= atol, name
        assert abs(threshold - other[name][1]) <= atol, name
        assert counts == list(other[name][2:]), name
