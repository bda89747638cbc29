"""A Kafka broker in memory: the mock cluster of librdkafka, which speaks Kafka's protocol over a real port.

Makes the topics that are its arguments, prints its port, and runs until it is ended. Whatever it was given goes with it.
"""

import signal
import sys

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 3})
for topic in sys.argv[1:]:
    (broker,) = producer.list_topics(topic, timeout=10).brokers.values()
while len(producer.list_topics(timeout=10).topics) < len(sys.argv) - 1:
    pass
print(broker.port, flush=True)
signal.pause()
