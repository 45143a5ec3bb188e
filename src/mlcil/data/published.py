"""Facts about the benchmarks of the published tables, MS-COCO 2014 and PASCAL VOC 2007."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """One of the benchmarks.

    Attributes:
        classes: number of classes.
        labels_per_image: mean number of labels per image that KRT assumes, mu of section 4.1. It is 1.4 on VOC,
            though the same paper counts 2.4.
        test_images: labelled test images, in val2014 of COCO and in the test set of VOC 2007.
    """

    classes: int
    labels_per_image: float
    test_images: int


BENCHMARKS = {  # by kind of data set
    "coco": Benchmark(classes=80, labels_per_image=2.9, test_images=40137),
    "voc": Benchmark(classes=20, labels_per_image=1.4, test_images=4952),
}
