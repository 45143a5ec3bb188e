"""Facts about the benchmarks of the published tables, MS-COCO 2014 and PASCAL VOC 2007."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_COCO = (
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop "
    "sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, "
    "umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball "
    "glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, "
    "apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, "
    "dining table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, "
    "refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush"
)
_VOC = (
    "aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse, motorbike, "
    "person, pottedplant, sheep, sofa, train, tvmonitor"
)


@dataclass(frozen=True)
class Benchmark:
    """One of the benchmarks.

    Attributes:
        names: of the classes.
        heads: the numbers of outputs that classifiers of these classes have: one per class, perhaps one for the
            background, and with detectors of COCO one per number up to 90, the largest that a class has there. LVIS has
            1203 other classes, on the photographs of COCO.
        labels_per_image: mean number of labels per image that KRT assumes, mu of section 4.1. It is 1.4 on VOC,
            though the same paper counts 2.4.
        test_images: labelled test images, in val2014 of COCO and in the test set of VOC 2007.
    """

    names: Sequence[str]
    heads: tuple[int, ...]
    labels_per_image: float
    test_images: int

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.names)


BENCHMARKS = {  # by kind of data set
    "coco": Benchmark(_COCO.split(", "), (80, 81, 90, 91, 1203, 1204), labels_per_image=2.9, test_images=40137),
    "voc": Benchmark(_VOC.split(", "), (20, 21), labels_per_image=1.4, test_images=4952),
}
