import re

from mlcil.web.app import make_app
from mlcil.web.metrics import Metrics

from .conftest import ACCESS, asked

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? -?[0-9.e+]+')


def parsed(text: str) -> dict[str, float]:
    """The values of a text in the format of Prometheus, by name and labels."""
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    assert text.endswith("\n")
    for line in lines:
        assert LINE.fullmatch(line), line
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_what_is_counted():
    metrics = Metrics()
    metrics.queue_length = lambda: 7
    for size in (1, 3, 16):
        metrics.add_batch(size)
    metrics.add_rejected(2)
    metrics.add_request("/v1/predict", 200, 0.02)
    found = parsed(metrics.text())
    assert found["mlcil_images_total"] == 20
    assert found["mlcil_rejected_images_total"] == 2
    assert found["mlcil_queue_images"] == 7
    assert [found[f'mlcil_batch_images_bucket{{le="{size}"}}'] for size in ("1", "2", "4", "8", "16", "+Inf")] == [
        *(1, 1, 2, 2, 3, 3)
    ]
    assert found['mlcil_requests_total{route="/v1/predict",status="200"}'] == 1
    assert found['mlcil_request_seconds_bucket{route="/v1/predict",le="0.01"}'] == 0
    assert found['mlcil_request_seconds_bucket{route="/v1/predict",le="0.025"}'] == 1
    assert found["process_resident_memory_bytes"] > 1e6


def test_histograms_are_complete():
    metrics = Metrics()
    metrics.add_request("/", 200, 100.0)
    found = parsed(metrics.text())
    assert found['mlcil_request_seconds_bucket{route="/",le="10"}'] == 0
    assert (
        found['mlcil_request_seconds_bucket{route="/",le="+Inf"}']
        == found['mlcil_request_seconds_count{route="/"}']
        == 1
    )
    assert found['mlcil_request_seconds_sum{route="/"}'] == 100


def test_paths_that_nobody_knows_make_no_labels():
    with asked(make_app("t", ACCESS, [], "predict.html")) as client:
        for number in range(20):
            client.get(f"/{number}")
            client.get(f"/pages/{number}.css")
        client.get("/", headers={"Host": "evil.com"})
        found = parsed(client.get("/metrics").text)
        routes = {name for name in found if name.startswith("mlcil_requests_total")}
        assert routes == {
            'mlcil_requests_total{route="other",status="404"}',
            'mlcil_requests_total{route="/pages/{name}",status="404"}',
            'mlcil_requests_total{route="other",status="421"}',
        }
        assert found['mlcil_requests_total{route="other",status="404"}'] == 20
