"""What the cross-attention costs as sessions grow, and against a literal version of it. `make bench` runs this.

Every figure is a ratio of medians measured in one run, interleaved, so that a busy machine blurs but does not bias it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mlcil.models.attention import IncrementalCrossAttention
from mlcil.models.backbone import Backbone
from mlcil.models.tagger import AttentionShape, Tagger

BATCH, SIZE, WIDTH, HEADS, CLASSES, ROUNDS = 8, 224, 384, 8, 10, 5


def literal_attention(ica: IncrementalCrossAttention, features: Tensor) -> Tensor:
    """The published form: session after session, keys and values of all patches projected anew each time."""
    patches = (ica.projection(features) + ica.position).flatten(2).transpose(1, 2)
    batch, results = len(patches), []
    for token in ica.kr:
        tokens = torch.cat([ica.kt.expand(batch, 1, -1), token.expand(batch, 1, -1), patches], dim=1)
        tokens, attention = ica.norm(tokens), ica.attention
        query = attention.query(tokens[:, :1])
        keys, values = (nn.functional.linear(tokens, one.weight) for one in (attention.key, attention.value))
        split = [one.reshape(batch, -1, HEADS, WIDTH // HEADS).transpose(1, 2) for one in (query, keys, values)]
        mixed = nn.functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)[:, 0]
        embedded = ica.kt + nn.functional.linear(mixed, attention.project.weight, attention.project.bias)
        hidden = nn.functional.linear(ica.mlp_norm(embedded), ica.mlp_in.weight, ica.mlp_in.bias)
        results.append(
            embedded + nn.functional.linear(nn.functional.gelu(hidden), ica.mlp_out.weight, ica.mlp_out.bias)
        )
    return torch.stack(results)


def medians(jobs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Seconds of each job, the median over interleaved rounds after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for place in range(ROUNDS + 1):
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if place:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def train(function: Callable[[], Tensor], model: nn.Module) -> Callable[[], None]:
    """A forward and a backward pass."""

    def step() -> None:
        function().sum().backward()
        model.zero_grad()

    return step


def attention_of(sessions: int) -> IncrementalCrossAttention:
    """A cross-attention that has seen so many sessions."""
    ica = IncrementalCrossAttention(2048, (7, 7), WIDTH, HEADS, attend_to_query=True)
    for _ in range(sessions):
        ica.grow()
    return ica


def measure() -> dict[str, float]:
    """All ratios by name."""
    torch.manual_seed(0)
    features, jobs = torch.randn(BATCH, 2048, 7, 7), {}
    for sessions in (1, 8, 32):
        ica = attention_of(sessions)
        torch.testing.assert_close(ica(features), literal_attention(ica, features), rtol=1e-4, atol=1e-5)
        jobs[f"ours {sessions}"] = train(lambda ica=ica: ica(features), ica)
        jobs[f"literal {sessions}"] = train(lambda ica=ica: literal_attention(ica, features), ica)
    tagger = Tagger(Backbone("tresnet_m", SIZE), AttentionShape(WIDTH, HEADS))
    for _ in range(8):
        tagger.grow(CLASSES)
    images = torch.randn(BATCH, 3, SIZE, SIZE)
    jobs["backbone"] = train(lambda: tagger.backbone(images), tagger)
    jobs["tagger 8"] = train(lambda: tagger(images).logits, tagger)
    seconds = medians(jobs)
    ratios = {
        f"attention, {n} sessions: literal / ours": seconds[f"literal {n}"] / seconds[f"ours {n}"] for n in (1, 8, 32)
    }
    ratios["attention: 32 sessions / 1 session"] = seconds["ours 32"] / seconds["ours 1"]
    ratios["TResNet-M step, 8 sessions: tagger / backbone"] = seconds["tagger 8"] / seconds["backbone"]
    return ratios


def main() -> None:
    """Print the ratios as a table and as JSON."""
    ratios = measure()
    table = Table("what (forward and backward)", "ratio", title=f"batch {BATCH}, {torch.get_num_threads()} threads")
    for name, value in ratios.items():
        table.add_row(name, f"{value:.2f}")
    Console().print(table)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
