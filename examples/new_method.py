"""A new method from beginning to end: write it, check it, run it beside fine-tuning.

    python examples/new_method.py          # about a minute

Anchored fine-tuning draws the backbone back to where the last session left it. The loop, the data, checkpoints, several
devices and evaluation are there already; the class says what to minimise and what to remember.
"""

from dataclasses import dataclass

import mlcil
from mlcil import Method, MethodConfig, option
from mlcil.testing import check_method


@dataclass(frozen=True)
class AnchoredConfig(MethodConfig):
    """The options of the method; the command line, its help and its error texts come from here."""

    pull: float = option(0.01, "weight of the squared distance from the anchor", low=0, paper="L2-SP, eq. 2")


class Anchored(Method):
    """Fine-tuning whose backbone is drawn back to where the last session left it."""

    name = "anchored"
    summary = "fine-tuning drawn back to the last session's backbone"
    family = "regularisation"
    reference = "Li et al., Explicit Inductive Bias for Transfer Learning, ICML 2018"
    Config = AnchoredConfig
    finetuning_options = {"pull": 0.0}  # with these options it is fine-tuning, which check_method verifies
    saved = ("anchor",)  # what it keeps besides the model: saved, loaded and resumed for you
    anchor: dict = {}  # parameters of the backbone by name, as the last session left them

    def before_session(self, session, infer):
        super().before_session(session, infer)  # grows the model by the session's classes
        if session.number > 1:
            weights = self.tagger.backbone.named_parameters()
            self.anchor = {name: weight.detach().clone() for name, weight in weights if weight.requires_grad}

    def losses(self, batch):
        terms = super().losses(batch)  # {"classification": ...}, a mean over the images of the batch
        if self.anchor and self.config.pull:
            weights = dict(self.tagger.backbone.named_parameters())
            distance = sum((weights[name] - old).square().sum() for name, old in self.anchor.items())
            terms["pull"] = self.config.pull * distance
        return terms


SETTINGS = {"data": "digits:train=1000,test=400,size=24", "protocol": "B6-C2", "image_size": 24, "augment": "none"}
SETTINGS |= {"epochs": 6, "batch_size": 32, "base_lr": 3e-3, "lr": 2e-3}


def main() -> None:
    """Check the method, then run it beside fine-tuning on handwritten digits."""
    # The checks start processes that import the class by name, which they cannot do from a script's __main__.
    from new_method import Anchored

    check_method(Anchored, pull=1.0)  # about half a minute; an AssertionError names the promise that is broken
    mlcil.register(Anchored)
    for name, options in (("ft", {}), ("anchored", {"pull": 0.1})):
        result = mlcil.run(method=name, out=f"runs/new-method/{name}", **SETTINGS, **options)
        print(f"{name}: mAP {result.last_map:.1f} over all ten digits, average over sessions {result.average_map:.1f}")


if __name__ == "__main__":
    main()
