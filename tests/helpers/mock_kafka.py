"""librdkafka's own Kafka cluster, for tests."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def kafka_cluster() -> Iterator[str]:
    """Yield the address of a cluster of two brokers; skips the test without confluent_kafka."""
    confluent_kafka = pytest.importorskip("confluent_kafka", reason="pip install 'declarative-recsys[kafka]'")
    producer = confluent_kafka.Producer({"test.mock.num.brokers": 2, "log_level": 0})
    brokers = producer.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{b.host}:{b.port}" for b in brokers)
    del producer


def produce(address: str, topic: str, values: Iterable[tuple[str, str]]) -> None:
    """Send messages: (key, value)."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address})
    for key, value in values:
        producer.produce(topic, value=value, key=key)
    producer.flush()
